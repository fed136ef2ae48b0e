"""``robolearn import``."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from robolearn.cli import flags
from robolearn.cli.parser import Parser
from robolearn.config import updated
from robolearn.importing import import_model, imported_config
from robolearn.training import TrainConfig
from sim.errors import UserError


def run(arguments: Sequence[str]) -> int:
    """Import."""
    parser = Parser(
        "import", "Make a run of a policy that Stable-Baselines3 trained elsewhere; nothing in its files is ever run."
    )
    parser.usage = (
        "robolearn import FILE.zip --task TASK [--algo sb3:NAME] [--normalize FILE.pkl] [--env.FIELD VALUE ...]"
    )
    parser.add_argument("--task", metavar="TASK", required=True, help="the task that the policy is for")
    parser.add_argument("--algo", metavar="NAME", help="sb3:sac, sb3:ppo, ...; read from the file if not given")
    parser.add_argument("--normalize", metavar="FILE.pkl", type=Path, help="what VecNormalize's save() wrote")
    parser.add_argument("--sim", metavar="NAME", default="mujoco", help="what the task's worlds come from")
    parser.add_argument("--runs", metavar="DIR", default="runs", help="where runs are kept")
    arguments = list(arguments)
    source = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    options, words = parser.parse_some(arguments)
    if source is None:
        raise UserError(f"FILE.zip, what an algorithm's save() wrote, comes first: {parser.usage}")
    config = imported_config(source, options.task, options.algo, options.normalize is not None, options.sim)
    fixed = [field.name for field in fields(TrainConfig) if field.name != "env"]
    config = updated(config, flags.read(config, words, parser, fixed))
    made = import_model(source, config, options.runs, options.normalize)
    network = " x ".join(map(str, config.algorithm.hidden)) or "linear"
    print(f"{config.algo}, hidden layers {network} {config.algorithm.activation}, {config.steps:,} steps")
    path = shlex.quote(str(made.path))
    for command in ("eval", "play", "export"):
        print(f"robolearn {command} {path}")
    return 0
