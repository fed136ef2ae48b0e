"""The goals of a Gymnasium environment in the manner of gymnasium-robotics."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from tasks.adapters.gymnasium_spaces import Flattener
from tasks.goal import Goal, Judge
from tasks.vector_env import EnvironmentFailed

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"


def goal_of(env: gymnasium.Env, flattener: Flattener) -> Goal | None:
    """Return the goals of an environment with ``compute_reward``; None of one without, or whose goals are no vectors.

    Args:
        env: one world, whose ``compute_reward`` and ``compute_terminated`` are called; it is not stepped.
        flattener: of its observations.
    """
    base: Any = env.unwrapped
    if not {_ACHIEVED, _DESIRED} <= flattener.boxes or not hasattr(base, "compute_reward"):
        return None
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Dict)
    shape = space[_DESIRED].shape
    if space[_ACHIEVED].shape != shape or not shape:
        return None
    examples = [np.zeros((2, *shape)), np.stack([np.zeros(shape), np.ones(shape)])]
    try:
        reward = _judge(base.compute_reward, shape, examples, torch.float32)
        ends = getattr(base, "compute_terminated", None)
        terminated = None if ends is None else _judge(ends, shape, examples, torch.bool)
    except Exception:  # it needs more than the goals; the environment's own code may raise anything
        return None
    return Goal(flattener.columns[_ACHIEVED], flattener.columns[_DESIRED], reward, terminated)


def _judge(
    function: Callable[..., Any], shape: tuple[int, ...], examples: list[np.ndarray], dtype: torch.dtype
) -> Judge:
    """Return a judge of (B, g) from a method of goals, in one call if it gives the same as one call for each row."""

    def one_by_one(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.array([float(function(a, d, {})) for a, d in zip(achieved, desired, strict=True)])

    def at_once(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.asarray(function(achieved, desired, {}), np.float64)

    rows = one_by_one(*examples)
    try:
        batch = at_once(*examples)
        chosen = at_once if batch.shape == rows.shape and np.allclose(batch, rows) else one_by_one
    except Exception:  # made for one goal; the environment's own code may raise anything
        chosen = one_by_one

    def judge(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
        goals = [goal.detach().cpu().numpy().astype(np.float64).reshape(-1, *shape) for goal in (achieved, desired)]
        values = chosen(*goals)
        if not np.isfinite(values).all():
            i = int((~np.isfinite(values)).nonzero()[0][0])
            raise EnvironmentFailed(f"{function.__name__} returned {values[i]} for the achieved goal "
                                    f"{goals[0][i].tolist()} where {goals[1][i].tolist()} was desired")  # fmt: skip
        return torch.from_numpy(values).to(achieved.device, dtype)

    return judge
