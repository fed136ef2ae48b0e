"""Stepping of whole tasks against the bare engine."""

from collections.abc import Iterator

from robolearn.benchmark import SimRates, simulation_rates
from robolearn.training import default_config

NUM_ENVS = 1024
TASKS = ("HalfCheetah", "Go2-Velocity-Flat")


def rates(num_envs: int = NUM_ENVS, steps: int = 50, rounds: int = 5) -> Iterator[tuple[str, SimRates]]:
    """Yield the rates of each task."""
    for task in TASKS:
        yield task, simulation_rates(default_config(task, num_envs=num_envs), steps, rounds)
