"""Settings that solve each task without tuning, on two CPU cores."""

from dataclasses import fields
from typing import Any

from robolearn.algorithms.trpo import TRPOConfig

_SMALL: dict[str, Any] = {
    "num_envs": 64,
    "algorithm": {"horizon": 64, "epochs": 8, "minibatches": 8, "hidden": (64, 64)},
}
"""For tasks of a few joints."""

_GYM: dict[str, Any] = {
    "num_envs": 64,
    "steps": 3_000_000,
    "algorithm": {
        "horizon": 32,
        "epochs": 8,
        "minibatches": 4,
        "target_kl": 0.02,
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
         "InvertedPendulum"),
        _GYM,
    ),
    "InvertedDoublePendulum": {
        **_GYM,
        "steps": 500_000,
        "algorithm": {
            **_GYM["algorithm"],
            "horizon": 64,
            "target_kl": 0.0,
            "learning_rate": 3e-4,
            "learning_rate_decay": True,
        },
    },
}  # fmt: skip


def _for_trpo(preset: dict[str, Any]) -> dict[str, Any]:
    """Return PPO's preset without the settings that only PPO has."""
    known = {field.name for field in fields(TRPOConfig)}
    return {**preset, "algorithm": {name: value for name, value in preset["algorithm"].items() if name in known}}


_TRPO = {
    **{task: _for_trpo(settings) for task, settings in _PPO.items() if task != "Go2-Velocity-Flat"},
    "InvertedDoublePendulum": {
        "num_envs": 64,
        "steps": 500_000,
        "algorithm": {
            "horizon": 128,
            "epochs": 8,
            "gamma": 0.995,
            "max_kl": 0.003,
            "learning_rate": 3e-4,
            "hidden": (128, 128),
            "initial_std": 0.4,
        },
    },
}

_ONE_WORLD: dict[str, Any] = {"num_envs": 1}
"""For off-policy algorithms that take a gradient step after each step of the environment."""

_QUICK: dict[str, Any] = {"hidden": (128, 128), "learning_rate": 1e-3, "warmup": 1000}
"""For off-policy algorithms on tasks of a few joints."""

_GRADIENT_A_STEP = ("sac", "td3", "ddpg", "dsac", "mdpo_off", "pmoe", "aro_ddpg")
_MANY_WORLDS = ("fast_td3", "fast_sac")

_OFF_POLICY: dict[str, dict[str, Any]] = {
    "Pendulum-Swingup": {**_ONE_WORLD, "steps": 20_000, "algorithm": {**_QUICK, "gamma": 0.98}},
    "CartPole-Balance": {**_ONE_WORLD, "steps": 20_000, "algorithm": _QUICK},
    "CartPole-Swingup": {**_ONE_WORLD, "steps": 40_000, "algorithm": _QUICK},
    "InvertedDoublePendulum": {**_ONE_WORLD, "steps": 100_000, "algorithm": {"warmup": 1000}},
    "HalfCheetah": {**_ONE_WORLD, "steps": 1_000_000},
    "FetchReach-v4": {
        **_ONE_WORLD,
        "steps": 20_000,
        "algorithm": {**_QUICK, "replay": "her", "gamma": 0.95, "polyak": 0.05},
    },
}

_FAST: dict[str, dict[str, Any]] = {
    "Pendulum-Swingup": {
        "num_envs": 32,
        "steps": 100_000,
        "algorithm": {**_QUICK, "gamma": 0.98, "batch_size": 512, "value_range": (-400.0, 0.0)},
    },
}

_FAST_SAC: dict[str, dict[str, Any]] = {
    **_FAST,
    "HalfCheetah": {
        "num_envs": 64,
        "steps": 500_000,
        "algorithm": {
            # On a CPU gradient steps are what costs and worlds are not: many rows for each step, small batches, and a
            # scalar critic, which needs no range of values.
            "critic": "scalar",
            "hidden": (256, 256),
            "batch_size": 256,
            "updates_per_step": 4,
            "learning_rate": 1e-3,
            "alpha_learning_rate": 1e-3,
            "gamma": 0.98,
            "polyak": 0.02,
            "warmup": 5000,
        },
    },
}

_SB3_QUICK: dict[str, Any] = {"hidden": (128, 128), "learning_rate": 1e-3, "learning_starts": 1000}
_SB3_SMALL: dict[str, Any] = {
    "num_envs": 64,
    "algorithm": {
        "n_steps": 64,
        "batch_size": 512,
        "n_epochs": 8,
        "learning_rate": 1e-3,
        "ent_coef": 0.005,
        "normalize_observation": True,
        "normalize_reward": True,
    },
}

_SB3_OFF_POLICY: dict[str, dict[str, Any]] = {
    "Pendulum-Swingup": {**_ONE_WORLD, "steps": 20_000, "algorithm": {**_SB3_QUICK, "gamma": 0.98}},
    "CartPole-Balance": {**_ONE_WORLD, "steps": 20_000, "algorithm": _SB3_QUICK},
    "CartPole-Swingup": {**_ONE_WORLD, "steps": 40_000, "algorithm": _SB3_QUICK},
    "HalfCheetah": {**_ONE_WORLD, "steps": 1_000_000, "algorithm": {"learning_starts": 10_000}},
}
_SB3_PPO: dict[str, dict[str, Any]] = {
    "CartPole-Balance": {**_SB3_SMALL, "steps": 200_000},
    "CartPole-Swingup": {**_SB3_SMALL, "steps": 600_000},
    "Pendulum-Swingup": {
        "num_envs": 64,
        "steps": 800_000,
        "algorithm": {**_SB3_SMALL["algorithm"], "gamma": 0.98, "ent_coef": 0.0},
    },
}
_SB3_OFF_POLICY_NAMES = ("sb3:sac", "sb3:td3", "sb3:ddpg")

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": _PPO,
    "trpo": _TRPO,
    **dict.fromkeys(_GRADIENT_A_STEP, _OFF_POLICY),
    "fast_td3": _FAST,
    "fast_sac": _FAST_SAC,
    **dict.fromkeys(_SB3_OFF_POLICY_NAMES, _SB3_OFF_POLICY),
    "sb3:ppo": _SB3_PPO,
}
"""By algorithm and task: fields of `robolearn.training.TrainConfig` that differ from its defaults."""

_ANY_TASK: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*_GRADIENT_A_STEP, "avg"), _ONE_WORLD),
    **{name: {"num_envs": 128} for name in _MANY_WORLDS},
    **dict.fromkeys(_SB3_OFF_POLICY_NAMES, _ONE_WORLD),
    **{name: {"num_envs": 8} for name in ("sb3:ppo", "sb3:a2c")},
}
"""By algorithm: the same for tasks without a preset."""


def preset(task: str, algorithm: str) -> dict[str, Any]:
    """Return what a task and an algorithm change in the defaults of a training."""
    return PRESETS.get(algorithm, {}).get(task, _ANY_TASK.get(algorithm, {}))
