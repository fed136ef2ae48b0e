"""Off-policy algorithms small enough to be taken apart, in worlds that end often."""

from typing import Any

from robolearn.algorithms.offpolicy import OffPolicy
from robolearn.algorithms.registry import algorithm_class
from sim.backends import make_simulation
from tasks.env import Env
from tasks.registry import make_task
from tasks.task import Task

ALGORITHMS = ("sac", "td3", "ddpg", "dsac", "fast_td3", "fast_sac", "mdpo_off", "pmoe", "aro_ddpg")
SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 32, "warmup": 64, "iteration_steps": 30, "capacity": 512}


def env_of(task: Task[Any], num_envs: int, seed: int = 0) -> Env:
    return Env(task, make_simulation("mujoco", task.model(), num_envs, threads=1), seed)


def pendulum(num_envs: int = 4, seed: int = 0) -> Env:
    return env_of(make_task("Pendulum-Swingup", episode_s=1.0), num_envs, seed)


def made(name: str, env: Any, seed: int = 0, **changes: Any) -> OffPolicy:
    cls = algorithm_class(name)
    return cls(env, cls.Config(**{**SMALL, **changes}), seed)
