"""Settings that solve each task without tuning, on two CPU cores."""

from typing import Any

_SMALL: dict[str, Any] = {
    "num_envs": 64,
    "algorithm": {"horizon": 64, "epochs": 8, "minibatches": 8, "hidden": (64, 64)},
}
"""For tasks of a few joints."""

_GYM: dict[str, Any] = {
    "num_envs": 64,
    "steps": 3_000_000,
    "algorithm": {
        "horizon": 64,
        "epochs": 8,
        "minibatches": 8,
        "gamma": 0.98,
        "lam": 0.92,
        "entropy_coefficient": 0.0,
        "normalize_reward": True,
        "hidden": (128, 128),
        "initial_std": 0.4,
    },
}
"""For Gymnasium's locomotion tasks."""

_PPO: dict[str, dict[str, Any]] = {
    "CartPole-Balance": {**_SMALL, "steps": 200_000},
    "CartPole-Swingup": {**_SMALL, "steps": 600_000},
    "Pendulum-Swingup": {
        "num_envs": 64,
        "steps": 800_000,
        "algorithm": {**_SMALL["algorithm"], "gamma": 0.98, "normalize_reward": True, "entropy_coefficient": 0.0},
    },
    "Go2-Velocity-Flat": {
        "num_envs": 1024,
        "steps": 5_000_000,
        "torch_threads": 2,
        "algorithm": {"symmetry_coefficient": 0.5},
    },
    **dict.fromkeys(
        ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher",
         "InvertedPendulum", "InvertedDoublePendulum"),
        _GYM,
    ),
}  # fmt: skip


def _without(preset: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a preset without some settings of its algorithm."""
    return {**preset, "algorithm": {k: v for k, v in preset["algorithm"].items() if k not in names}}


_TRPO = {
    task: _without(settings, "entropy_coefficient") for task, settings in _PPO.items() if task != "Go2-Velocity-Flat"
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"ppo": _PPO, "trpo": _TRPO}
"""By algorithm and task: fields of `robolearn.training.TrainConfig` that differ from its defaults."""


def preset(task: str, algorithm: str) -> dict[str, Any]:
    """Return what a task changes in the defaults of a training; nothing for a task without a preset."""
    return PRESETS.get(algorithm, {}).get(task, {})
