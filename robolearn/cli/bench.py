"""``robolearn bench``."""

import os
from collections.abc import Sequence
from importlib.metadata import version

from robolearn.benchmark import learning_rates, simulation_rates
from robolearn.cli.parser import Parser, at_least
from robolearn.log import print_table
from robolearn.training import TrainConfig, default_config

TASK = "Go2-Velocity-Flat"


def run(arguments: Sequence[str]) -> int:
    """Measure."""
    parser = Parser("bench", "Measure this machine; `sim` has MuJoCo's own batched stepping beside the environment.")
    parser.add_argument("what", choices=("sim", "learn"), help="stepping, or the parts of a training")
    parser.add_argument("task", metavar="TASK", nargs="?", default=TASK, help="the task that is run")
    parser.add_argument("--num-envs", metavar="N", type=at_least(1), default=1024, help="worlds")
    parser.add_argument("--threads", metavar="N", type=at_least(0), default=0, help="CPU threads; 0 for every core")
    parser.add_argument(
        "--rounds", metavar="N", type=at_least(1), default=5, help="measurements, of which the median counts"
    )
    parser.add_argument("--steps", metavar="N", type=at_least(1), default=100, help="sim: control steps in a round")
    parser.add_argument("--algo", metavar="NAME", default="ppo", help="learn: the algorithm")
    options = parser.parse(arguments)
    config = default_config(options.task, options.algo, num_envs=options.num_envs, threads=options.threads)
    if options.what == "sim":
        _sim(config, options.steps, options.rounds)
    else:
        _learn(config, options.rounds)
    packages = ", ".join(f"{name} {version(name)}" for name in ("robolearn", "mujoco", "torch"))
    threads = config.threads or len(os.sched_getaffinity(0))
    print(f"{config.task}, {config.num_envs} worlds, {threads} threads; {packages}")
    return 0


def _sim(config: TrainConfig, steps: int, rounds: int) -> None:
    rates = simulation_rates(config, steps, rounds)
    rows = [
        ("environment, everything included", rates.env),
        ("raw mujoco.batch, same states and controls", rates.raw),
    ]
    print_table("stepping", ("", "physics steps/s"), [(name, f"{rate:,.0f}") for name, rate in rows])
    print(f"environment / raw: {rates.ratio:.3f}")


def _learn(config: TrainConfig, rounds: int) -> None:
    rates = learning_rates(config, rounds)
    rows = [("collect", rates.collect), ("update", rates.update), ("both, as in a training", rates.total)]
    print_table(config.algo, ("", "environment steps/s"), [(name, f"{rate:,.0f}") for name, rate in rows])
    print(f"share of the time in update: {rates.update_share:.3f}")
