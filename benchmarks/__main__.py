"""``make bench``: every comparison of this folder, each a ratio measured in one run, with versions and machine load."""

import sys

from benchmarks import halfcheetah, learner, stepping
from benchmarks.machine import print_versions
from robolearn.log import print_table
from robolearn.training import default_config

TARGET = 3000.0
"""Return on HalfCheetah that the wall clock is taken to."""
OUR_STEPS = 3_000_000
"""Environment steps of our training."""
SB3_STEPS = 1_000_000
"""Environment steps the other library gets, those of the zoo's own run."""


def main() -> int:
    print_versions()
    rows = [(task, r.raw, r.env, r.ratio) for task, r in stepping.rates()]
    print_table(
        f"physics steps/s, {stepping.NUM_ENVS:,} worlds", ("task", "mujoco.batch alone", "with the task", "ratio"), rows
    )
    learner.show()
    print(f"HalfCheetah, seconds of training to a mean return of {TARGET:.0f} of the deterministic policy:")
    config = default_config("HalfCheetah", "ppo", steps=OUR_STEPS)
    ours = halfcheetah.shown(halfcheetah.ours(config, every=16_384), "robolearn PPO")
    model = halfcheetah.stable_baselines3_ppo()
    theirs = halfcheetah.shown(halfcheetah.stable_baselines3(model, SB3_STEPS, every=10_240), "SB3 PPO", until=TARGET)
    print(halfcheetah.verdict(ours, theirs, TARGET))
    at_1m = next(point for point in ours if point.steps >= 1_000_000)
    rows = [(point.steps, point.score, point.seconds) for point in (at_1m, ours[-1])]
    print_table("HalfCheetah, PPO (the zoo's PPO: 5,819 at 1M)", ("steps", "return", "seconds"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
