"""A vector environment of somebody else's, whatever way it begins new episodes."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from sim.errors import UserError
from tasks.adapters.gymnasium_make import said, shut
from tasks.adapters.gymnasium_spaces import Flattener
from tasks.adapters.gymnasium_worlds import Rows
from tasks.vector_env import EnvironmentFailed


class VectorStepper:
    """Reads a Gymnasium vector environment.

    One that begins a new episode with the step after the end (NEXT_STEP) ignores that step's action: the row is not
    valid. One that begins it within the step (SAME_STEP) has the true last observation in its info. One that begins
    none (DISABLED) is told to.
    """

    restarts = 0

    def __init__(self, env: gymnasium.vector.VectorEnv, name: str, flattener: Flattener, infos: Sequence[str]):
        self._env, self._name, self._flattener, self._infos = env, name, flattener, tuple(infos)
        space = env.single_action_space
        self._action_shape, self._dtype = (env.num_envs, *(space.shape or ())), space.dtype
        mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._restart = {
            AutoresetMode.NEXT_STEP: self._next_step,
            AutoresetMode.SAME_STEP: self._same_step,
            AutoresetMode.DISABLED: self._disabled,
        }[mode]
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
        """Begin new episodes where ``mask`` (N,) says so, and return the present observations (N, D).

        Raises:
            UserError: the environment can only be reset as a whole.
            EnvironmentFailed: it raises.
        """
        try:
            observation, _ = self._env.reset(seed=seeds[0], options=None if mask.all() else {"reset_mask": mask.copy()})
        except Exception as error:  # the environment's own code may raise anything
            if not mask.all():
                raise UserError(f"{self._name} cannot reset some of its worlds alone: {said(error)}") from error
            raise EnvironmentFailed(f"{self._name} raised in reset: {said(error)}") from error
        self._ended &= ~mask
        return self._rows(observation)

    def step(self, action: np.ndarray, last: np.ndarray) -> Rows:
        """Apply actions (N, A); ``last`` must mark none: the environment has a time limit of its own.

        Raises:
            EnvironmentFailed: it raises, or returns what its spaces do not say.
        """
        assert not last.any()
        result = self._called(lambda: self._env.step(action.reshape(self._action_shape).astype(self._dtype)))
        observation, reward, terminated, truncated, info = result
        observation = self._rows(observation)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        truncated &= ~terminated
        numbers = np.stack([self._number(info, name) for name in self._infos], 1) if self._infos else None
        infos = np.zeros((len(terminated), 0)) if numbers is None else numbers
        rows = Rows(observation, observation, np.array(reward, np.float64), terminated, truncated,
                    np.ones(len(terminated), bool), infos)  # fmt: skip
        return self._restart(rows, info)

    def close(self) -> None:
        """Close the environment."""
        shut(self._env, self._name)

    def _next_step(self, rows: Rows, info: dict[str, Any]) -> Rows:
        del info
        valid = ~self._ended
        self._ended = valid & (rows.terminated | rows.truncated)
        terminated, truncated = rows.terminated & valid, rows.truncated & valid
        return Rows(rows.observation, rows.final, rows.reward, terminated, truncated, valid, rows.infos)

    def _same_step(self, rows: Rows, info: dict[str, Any]) -> Rows:
        done = rows.terminated | rows.truncated
        if not done.any():
            return rows
        name = "final_obs" if "final_obs" in info else "final_observation"
        if name not in info:
            raise EnvironmentFailed(f"{self._name} says that it resets within a step, and gives no final_obs")
        final, last = rows.final.copy(), info[name]
        if isinstance(last, np.ndarray) and last.dtype == object:
            for i in done.nonzero()[0].tolist():
                self._flattener.write(last[i], final[i])
        else:
            final[done] = self._rows(last)[done]
        infos, ends = rows.infos.copy(), info.get("final_info")
        if isinstance(ends, dict):
            for k, key in enumerate(self._infos):
                infos[done, k] = self._number(ends, key)[done]
        return Rows(rows.observation, final, rows.reward, rows.terminated, rows.truncated, rows.valid, infos)

    def _disabled(self, rows: Rows, info: dict[str, Any]) -> Rows:
        del info
        done = rows.terminated | rows.truncated
        if not done.any():
            return rows
        following, _ = self._called(lambda: self._env.reset(options={"reset_mask": done.copy()}))
        return Rows(self._rows(following), rows.final, rows.reward, rows.terminated, rows.truncated, rows.valid,
                    rows.infos)  # fmt: skip

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # the environment's own code may raise anything
            raise EnvironmentFailed(f"{self._name} raised in step: {said(error)}") from error

    def _rows(self, observation: Any) -> np.ndarray:
        rows = np.empty((self._env.num_envs, self._flattener.size), np.float32)
        self._flattener.write_batch(observation, self._env.observation_space, rows)
        return rows

    def _number(self, info: dict[str, Any], name: str) -> np.ndarray:
        """Return a number (N,) of the info, 0 in the worlds without it."""
        if name not in info:
            return np.zeros(self._env.num_envs)
        values, there = np.asarray(info[name], np.float64), info.get(f"_{name}")
        return values if there is None else np.where(there, values, 0.0)
