"""``robolearn demo``."""

from collections.abc import Sequence
from pathlib import Path

from deploy.errors import ContractError
from robolearn import demo
from robolearn.cli.evaluate import run_episodes
from robolearn.cli.parser import Failure, Parser, at_least, failures
from robolearn.cli.train import train_or_explain
from robolearn.log import print_table
from sim.errors import UserError


def run(arguments: Sequence[str]) -> int:
    """Demonstrate."""
    parser = Parser(
        "demo", f"Train {demo.TASK} from scratch, export it, verify it, judge the exported file and film it."
    )
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("demo"), help="where everything goes")
    parser.add_argument("--steps", metavar="N", type=at_least(1), help="environment steps; the preset's if not given")
    parser.add_argument("--num-envs", metavar="N", type=at_least(1), help="worlds; the preset's if not given")
    parser.add_argument("--seed", metavar="S", type=at_least(0), default=0, help="decides every random number")
    parser.add_argument("--episodes", metavar="N", type=at_least(1), default=demo.EPISODES, help="of the evaluation")
    options = parser.parse(arguments)
    given = {name: getattr(options, name) for name in ("steps", "num_envs", "seed")}
    with failures():
        config, into = demo.begin(options.output, **{name: v for name, v in given.items() if v is not None})
    print(f"training {demo.TASK} for {config.steps:,} steps in {config.num_envs} worlds", flush=True)
    outcome = train_or_explain(config, into)
    print("exporting, verifying and evaluating", flush=True)
    try:
        made = demo.finish(options.output, into, outcome, options.episodes, run_episodes)
    except (ContractError, UserError) as error:
        raise Failure(str(error)) from error
    _report(made)
    return 0


def _report(made: demo.Demo) -> None:
    result, outcome = made.result, made.outcome
    upright = 100 * (1 - result["fell"])
    rows = [
        ("velocity error, m/s", f"{result['velocity_error']:.3f}", "at most 0.25", "0.59"),
        ("yaw rate error, rad/s", f"{result['yaw_rate_error']:.3f}", "at most 0.35", "0.50"),
        ("episodes without a fall", f"{upright:.1f} %", "at least 95 %", "100 %"),
        ("training, s", f"{outcome.seconds:,.0f}", "at most 900", ""),
        ("training, steps/s", f"{outcome.steps / max(outcome.seconds, 1e-9):,.0f}", "", ""),
    ]
    title = f"the exported policy over {result['episodes']} episodes of 20 s: random commands, pushes, noise"
    print_table(title, ("measure", "value", "wanted", "standing still"), rows)
    for path in made.files:
        print(path)
    if made.no_video is not None:
        print(f"no walk.mp4: {made.no_video}")
