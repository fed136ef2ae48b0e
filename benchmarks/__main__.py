"""``make bench``: every comparison of this folder, each a ratio measured in one run, with versions and machine load."""

import os
import platform
import sys
from importlib.metadata import version

from benchmarks import halfcheetah, learner, stepping
from robolearn.log import print_table

TARGET = 3000.0
"""Return on HalfCheetah that the wall clock is taken to."""
OUR_STEPS = 3_000_000
"""Environment steps of our training."""
SB3_STEPS = 1_000_000
"""Environment steps the other library gets, those of the zoo's own run."""


def main() -> int:
    packages = ", ".join(f"{name} {version(name)}" for name in ("mujoco", "torch", "gymnasium", "stable-baselines3"))
    print(f"{packages}; Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, "
          f"load {os.getloadavg()[0]:.2f}")  # fmt: skip
    rows = [(task, r.raw, r.env, r.ratio) for task, r in stepping.rates()]
    print_table(
        f"physics steps/s, {stepping.NUM_ENVS:,} worlds", ("task", "mujoco.batch alone", "with the task", "ratio"), rows
    )
    learner.show()
    print(f"HalfCheetah, seconds of training to a mean return of {TARGET:.0f} of the deterministic policy:")
    ours = halfcheetah.shown(halfcheetah.ours(OUR_STEPS, every=16_384), "robolearn PPO")
    theirs = halfcheetah.shown(halfcheetah.stable_baselines3(SB3_STEPS, every=10_240), "SB3 PPO", until=TARGET)
    own, other = halfcheetah.first(ours, TARGET), halfcheetah.first(theirs, TARGET)
    if own is None:
        print(f"robolearn did not reach {TARGET:.0f} in {OUR_STEPS:,} steps")
    elif other is None:
        print(f"robolearn {own.seconds:.0f} s; SB3 did not reach it in {theirs[-1].seconds:.0f} s")
    else:
        print(
            f"robolearn {own.seconds:.0f} s, SB3 {other.seconds:.0f} s: {other.seconds / own.seconds:.1f} times sooner"
        )
    at_1m = next(point for point in ours if point.steps >= 1_000_000)
    rows = [(point.steps, point.score, point.seconds) for point in (at_1m, ours[-1])]
    print_table("HalfCheetah, PPO (the zoo's PPO: 5,819 at 1M)", ("steps", "return", "seconds"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
