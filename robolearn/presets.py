"""Settings that solve each task without tuning, on two CPU cores."""

from typing import Any

_PPO: dict[str, dict[str, Any]] = {
    "CartPole-Balance": {"num_envs": 64, "steps": 200_000},
    "CartPole-Swingup": {"num_envs": 64, "steps": 600_000},
    "Pendulum-Swingup": {"num_envs": 64, "steps": 400_000},
    "Go2-Velocity-Flat": {
        "num_envs": 1024,
        "steps": 10_000_000,
        "algorithm": {"symmetry_coefficient": 0.5},
    },
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"ppo": _PPO}
"""By algorithm and task: fields of `robolearn.training.TrainConfig` that differ from its defaults."""


def preset(task: str, algorithm: str) -> dict[str, Any]:
    """Return what a task changes in the defaults of a training; nothing for a task without a preset."""
    return PRESETS.get(algorithm, {}).get(task, {})
