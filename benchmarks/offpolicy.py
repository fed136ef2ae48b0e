"""``python -m benchmarks.offpolicy``: seconds to a return on HalfCheetah, our off-policy preset against SB3's SAC.

``python -m benchmarks.offpolicy ALGO [SEED]`` trains ALGO for the million steps of the published curves instead.
"""

import sys

import torch

from benchmarks import halfcheetah
from benchmarks.machine import print_versions
from robolearn.training import default_config

TARGET = 5000.0
"""Return that the wall clock is taken to."""
SB3_STEPS = 300_000
"""Most environment steps the other library gets to reach it."""


def race() -> None:
    """Print both trainings up to the target, one after the other."""
    print(f"HalfCheetah, seconds of training to a mean return of {TARGET:.0f} of the deterministic policy:")
    config = default_config("HalfCheetah", "fast_sac")
    ours = halfcheetah.shown(halfcheetah.ours(config, every=1), "robolearn fast_sac", until=TARGET)
    torch.set_num_threads(1)  # as ours; a second one gains the other library 4 % where nothing else runs
    model = halfcheetah.stable_baselines3_sac()
    theirs = halfcheetah.shown(halfcheetah.stable_baselines3(model, SB3_STEPS, every=5000), "SB3 SAC", until=TARGET)
    print(halfcheetah.verdict(ours, theirs, TARGET))


def curve(algo: str, seed: int = 0) -> None:
    """Print an evaluation for every 10,000 steps of the preset."""
    config = default_config("HalfCheetah", algo, seed=seed)
    halfcheetah.shown(halfcheetah.ours(config, every=10_000), f"robolearn {algo}")


if __name__ == "__main__":
    print_versions()
    if len(sys.argv) > 1:
        curve(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        race()
