"""``robolearn train``."""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from robolearn import run as runs
from robolearn.algorithms.registry import ALGORITHMS, algorithm_class
from robolearn.cli import flags
from robolearn.cli.parser import Failure, Parser, failures
from robolearn.config import updated
from robolearn.environments import SIMS
from robolearn.log import print_table, read_metrics
from robolearn.run import Run
from robolearn.training import Outcome, TrainConfig, TrainingFailed, default_config, load_config, make_env, train
from sim.errors import UserError

FIXED = ("task", "algo", "sim")
"""Fields of the config that other options decide."""
RESUMABLE = ("steps", "threads", "checkpoint_every")
"""Fields that a resumed training may change and still be the same training."""
SHOWN = ("episode/return", "episode/length", "metric/", "outcome/", "termination/")
"""What of the last metrics is printed at the end, by the beginning of its name."""


def run(arguments: Sequence[str]) -> int:
    """Train."""
    arguments = list(arguments)
    task = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    parser = Parser("train", "Train a policy; every field of the task's and the algorithm's config is a flag.", False)
    parser.usage = "robolearn train TASK [--algo NAME] [--FIELD VALUE ...] | robolearn train --resume RUN [--steps N]"
    parser.add_argument("-h", "--help", action="store_true", help="with TASK: also every field of its config")
    parser.add_argument(
        "--algo", metavar="NAME", default=None, help=f"algorithm: {', '.join(ALGORITHMS)}; ppo if not given"
    )
    parser.add_argument("--sim", metavar="NAME", help=f"{', '.join(SIMS)}; gymnasium takes its ids")
    parser.add_argument("--resume", metavar="RUN", help="go on with this run, bit for bit")
    parser.add_argument("--init", metavar="RUN", help="begin with the policy of this run")
    parser.add_argument("--runs", metavar="DIR", default="runs", help="where runs are kept")
    options, words = parser.parse_some(arguments)
    if options.help:
        parser.print_help()
        if task is not None:
            print()
            flags.help_of(_default(task, options), f"robolearn train {task}")
        return 0
    if options.resume is not None:
        if options.init is not None:
            raise UserError("--init begins a new run and --resume goes on with one; give one of them")
        return _resume(
            {"task": task, "algo": options.algo, "sim": options.sim}, runs.open(options.resume), words, parser
        )
    if task is None:
        raise UserError(f"TASK comes first: {parser.usage}; `robolearn list` shows the tasks")
    return _begin(task, options, words, parser)


def _begin(task: str, options: Any, words: Sequence[str], parser: Parser) -> int:
    init = None if options.init is None else runs.open(options.init)
    default = _default(task, options)
    lacking = partial(_algorithms_with, default.algo)
    config = updated(default, flags.read(default, words, parser, FIXED, lacking))
    make_env(config, num_envs=1).close()  # what is wrong with the config is said before there is a run of it
    with failures():
        made = runs.create(options.runs, config.task, config.algo, config, config.seed, config.device)
    _report(made, train_or_explain(config, made, init=init))
    return 0


def _default(task: str, options: Any) -> TrainConfig:
    return default_config(task, options.algo or "ppo", options.sim or "mujoco")


def _algorithms_with(algo: str, flag: str) -> str:
    """Say which algorithms have a flag that this one lacks; nothing if none has."""
    having = []
    for name in ALGORITHMS:
        try:
            config = algorithm_class(name).Config()
        except UserError:  # the package that it comes from is not installed
            continue
        if flag in (f"--algorithm.{known.name[2:]}" for known in flags.flags_of(config)):
            having.append(name)
    return f"{algo} has no {flag}; {', '.join(having)} have" if having else ""


def _resume(given: dict[str, str | None], opened: Run, words: Sequence[str], parser: Parser) -> int:
    saved = load_config(opened.config)
    for name, asked in given.items():
        if asked is not None and asked != getattr(saved, name):
            raise UserError(f"{opened.path} trains {name} {getattr(saved, name)}, not {asked}")
    changes = flags.read(saved, words, parser, FIXED)
    for name in changes:
        if name not in RESUMABLE:
            flag = "--" + name.replace("_", "-")
            sim = "" if saved.sim == "mujoco" else f" --sim {saved.sim}"
            anew = f"robolearn train {saved.task}{sim} --init {opened.path}"
            raise UserError(f"{flag} cannot change when a run is resumed; for a new run with its policy: {anew}")
    _report(opened, train_or_explain(updated(saved, changes), opened, resume=True))
    return 0


def train_or_explain(config: TrainConfig, into: Run, resume: bool = False, init: Run | None = None) -> Outcome:
    """Train to the end and return what came of it; a run that fails before anything is learned is removed.

    Raises:
        UserError: the config or a checkpoint does not fit.
        Failure: the training could not go on.
        KeyboardInterrupt: it was interrupted; says how to go on, or that nothing was saved.
    """
    again = f"robolearn train --resume {shlex.quote(str(into.path))}"
    try:
        outcome = train(config, into, resume, init)
    except TrainingFailed as error:
        if error.iterations == 0:
            into.discard()
            raise Failure(str(error)) from error
        raise Failure(f"{error}; go on with: {again}") from error
    except KeyboardInterrupt:
        if into.discard_if_empty():
            raise KeyboardInterrupt("interrupted before the first checkpoint; nothing was saved") from None
        raise KeyboardInterrupt(f"interrupted; go on from the last checkpoint with: {again}") from None
    except BaseException:
        into.discard_if_empty()
        raise
    if not outcome.finished:
        raise KeyboardInterrupt(f"stopped and saved after {outcome.steps:,} of {config.steps:,} steps; "
                                f"go on with: {again}")  # fmt: skip
    return outcome


def _report(into: Run, outcome: Outcome) -> None:
    rows: list[tuple[str, Any]] = [("steps", outcome.steps), ("iterations", outcome.iterations)]
    rows += [("seconds", outcome.seconds), ("steps/s", outcome.steps / max(outcome.seconds, 1e-9))]
    metrics = read_metrics(into.metrics)
    last = metrics[-1] if metrics else {}
    rows += [(name, value) for name, value in last.items() if value is not None and name.startswith(SHOWN)]
    path = shlex.quote(str(into.path))
    print_table(path, ("measure", "value"), rows)
    for command in ("eval", "play", "export"):
        print(f"robolearn {command} {path}")
