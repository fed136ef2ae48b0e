"""Algorithms by name."""

import importlib
from typing import Any, Protocol

import torch

from sim.errors import unknown
from tasks.vector_env import VectorEnv

ALGORITHMS: dict[str, str] = {
    "ppo": "robolearn.algorithms.ppo:PPO",
    "trpo": "robolearn.algorithms.trpo:TRPO",
    "sac": "robolearn.algorithms.offpolicy_presets:SAC",
    "td3": "robolearn.algorithms.offpolicy_presets:TD3",
    "ddpg": "robolearn.algorithms.offpolicy_presets:DDPG",
    "dsac": "robolearn.algorithms.offpolicy_presets:DSAC",
    "fast_td3": "robolearn.algorithms.offpolicy_presets:FastTD3",
    "fast_sac": "robolearn.algorithms.offpolicy_presets:FastSAC",
    "mdpo_off": "robolearn.algorithms.offpolicy_presets:MDPO",
    "pmoe": "robolearn.algorithms.offpolicy_presets:PMOE",
    "aro_ddpg": "robolearn.algorithms.offpolicy_presets:ARODDPG",
    "sb3:a2c": "robolearn.algorithms.sb3:A2C",
    "sb3:ddpg": "robolearn.algorithms.sb3:DDPG",
    "sb3:ppo": "robolearn.algorithms.sb3:PPO",
    "sb3:sac": "robolearn.algorithms.sb3:SAC",
    "sb3:td3": "robolearn.algorithms.sb3:TD3",
    "avg": "robolearn.algorithms.avg:AVG",
}
"""Where the class of each algorithm is."""


class Algorithm(Protocol):
    """What the training loop needs of an algorithm; a class makes one from an environment, its config and a seed."""

    policy: Any
    """The policy module, with ``act``."""
    steps_per_iteration: int
    """Environment steps of one ``collect``."""

    def collect(self, env: VectorEnv) -> dict[str, float]:
        """Gather experience and return means over the episodes that ended."""
        ...

    def update(self, progress: float) -> dict[str, float]:
        """Learn, ``progress`` (0 to 1) into the run, and return metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit; ``"policy"`` holds the policy's own."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        ...


def algorithm_class(name: str) -> Any:
    """Return the class of an algorithm; its ``Config`` is the class of its config.

    Raises:
        UserError: there is no such algorithm, or the package it comes from is not installed.
    """
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    module, _, attribute = ALGORITHMS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def policy_of(name: str, env: VectorEnv, config: Any, state: dict[str, Any]) -> torch.nn.Module:
    """Return the policy that an algorithm's saved state holds; the number of worlds may be another."""
    cls = algorithm_class(name)
    # A class whose algorithm is costly to make, or needs more than the policy does, says how to make that alone.
    policy = cls.policy_for(env, config) if hasattr(cls, "policy_for") else cls(env, config).policy
    policy.load_state_dict(state["policy"])
    return policy
