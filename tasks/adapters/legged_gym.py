"""The environment as a legged_gym task, for code written against ``BaseTask``."""

from typing import Any

import torch

from tasks.env import Env


class LeggedGymTask:
    """Reads an environment through the names of ``BaseTask``; the critic's group is the privileged observation.

    Finished worlds are reset within ``step``; ``extras["time_outs"]`` marks those that only ran out of time.
    """

    def __init__(self, env: Env):
        self.env, self.cfg = env, env.cfg
        self.num_envs, self.device = env.num_envs, str(env.device)
        self.num_obs = sum(env.observation_terms["policy"].values())
        self.num_privileged_obs = sum(env.observation_terms["critic"].values())
        self.num_actions = len(env.action_term.names)
        self.max_episode_length, self.max_episode_length_s, self.dt = (
            env.max_episode_length,
            env.max_episode_length_s,
            env.step_dt,
        )
        self.rew_buf = torch.zeros(self.num_envs, device=env.device)
        self.reset_buf = torch.ones(self.num_envs, dtype=torch.long, device=env.device)
        self.time_out_buf = torch.zeros(self.num_envs, dtype=torch.bool, device=env.device)
        self.extras: dict[str, Any] = {}

    @property
    def obs_buf(self) -> torch.Tensor:
        """(N, D) the policy's observations."""
        return self.env.obs_buf["policy"]

    @property
    def privileged_obs_buf(self) -> torch.Tensor:
        """(N, Dc) the critic's observations."""
        return self.env.obs_buf["critic"]

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """(N,) steps since the last reset; may be written."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, values: torch.Tensor) -> None:
        self.env.episode_length_buf = values

    def get_observations(self) -> torch.Tensor:
        """Return the policy's observations (N, D)."""
        return self.obs_buf

    def get_privileged_observations(self) -> torch.Tensor:
        """Return the critic's observations (N, Dc)."""
        return self.privileged_obs_buf

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        """Start a new episode in the worlds ``env_ids`` (n,)."""
        mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.env.device)
        mask[env_ids] = True
        self.env.reset(options={"reset_mask": mask})

    def reset(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Start a new episode in every world; return both observations."""
        self.env.reset()
        return self.obs_buf, self.privileged_obs_buf

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions (N, A); return both observations, rewards (N,), reset flags (N,) int64 and extras."""
        _, self.rew_buf, terminated, self.time_out_buf, extras = self.env.step(actions)
        self.reset_buf = (terminated | self.time_out_buf).long()
        self.extras = {"time_outs": self.time_out_buf, "episode": extras["log"]}
        return self.obs_buf, self.privileged_obs_buf, self.rew_buf, self.reset_buf, self.extras
