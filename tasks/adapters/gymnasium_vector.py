"""The environment as a Gymnasium vector environment."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from tasks.env import Env, Observation


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """The policy group of an environment, in NumPy arrays, with autoreset SAME_STEP.

    As in Gymnasium's own vector environments, ``info["final_obs"]`` and ``info["final_info"]`` are there only on steps
    on which a world finished, and ``info["_final_obs"]`` (N,) bool marks those worlds. ``final_obs`` (N,) holds an
    observation (D,) for each of them and None for the others; ``final_info`` holds (N,) arrays of the step's flags and
    measures.
    """

    def __init__(self, env: Env):
        self.env = env
        self.num_envs, self.metadata, self.render_mode = env.num_envs, env.metadata, env.render_mode
        self.single_observation_space = env.single_observation_space["policy"]
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.single_action_space, self.action_space = env.single_action_space, env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observation, _ = self.env.reset(seed=seed, options=options)
        return _policy(observation), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        action = torch.from_numpy(np.asarray(actions, np.float32))
        observation, reward, terminated, truncated, extras = self.env.step(action)
        done = (terminated | truncated).cpu().numpy()
        info = _final(extras, done) if done.any() else {}
        return _policy(observation), reward.cpu().numpy(), terminated.cpu().numpy(), truncated.cpu().numpy(), info

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()


def _policy(observation: Observation) -> np.ndarray:
    return observation["policy"].cpu().numpy()


def _final(extras: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    last, rows = np.full(len(done), None, dtype=object), _policy(extras["final_obs"])
    for i in done.nonzero()[0]:
        last[i] = rows[i]
    measures: dict[str, Any] = {}
    for name, values in (extras["terminations"] | extras["metrics"]).items():
        measures |= {name: values.cpu().numpy(), f"_{name}": done}
    return {"final_obs": last, "_final_obs": done, "final_info": measures, "_final_info": done.copy()}
