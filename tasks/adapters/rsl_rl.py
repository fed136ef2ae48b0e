"""The environment as an rsl_rl vector environment."""

from typing import Any

import torch

from sim.errors import missing
from tasks.env import Env

try:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict
except ImportError:
    raise missing("tasks.adapters.rsl_rl", "rsl-rl-lib", "interop") from None


class RslRlVecEnv(VecEnv):
    """An environment for rsl_rl's runners, whose ``obs_groups`` name our groups ``"policy"`` and ``"critic"``."""

    def __init__(self, env: Env):
        self.env = env
        self.num_envs, self.device, self.cfg = env.num_envs, env.device, env.cfg
        self.num_actions = len(env.action_term.names)
        self.max_episode_length = env.max_episode_length

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N,) steps since the last reset; runners write it to spread out the truncations."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, values: torch.Tensor) -> None:
        self.env.episode_length_buf = values

    def get_observations(self) -> TensorDict:
        return TensorDict(dict(self.env.obs_buf), batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        _, reward, terminated, truncated, extras = self.env.step(actions)
        done = (terminated | truncated).long()
        return self.get_observations(), reward, done, {"time_outs": truncated, "log": extras["log"]}
