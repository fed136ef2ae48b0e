"""What a figure was measured with."""

import os
import platform
from importlib.metadata import version


def print_versions() -> None:
    """Print the versions that matter, the number of cores and the machine's load."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("mujoco", "torch", "gymnasium", "stable-baselines3"))
    print(f"{packages}; Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, "
          f"load {os.getloadavg()[0]:.2f}")  # fmt: skip
