"""The environment as an IsaacGymEnvs task, for code written against ``VecTask``."""

from typing import Any

import gymnasium
import torch

from tasks.env import Env

Observations = dict[str, torch.Tensor]
"""``"obs"`` (N, D) and ``"states"`` (N, Dc), the policy's and the critic's group."""


class IsaacGymVecTask:
    """Reads an environment through the names of ``VecTask``.

    Finished worlds are reset within ``step``, as a ``VecTask`` does; ``extras["time_outs"]`` marks those that only ran
    out of time, and ``extras["final_obs"]``, which ``VecTask`` lacks, holds the true last observations.
    """

    num_agents = 1
    control_freq_inv = 1
    """Calls of the physics to one action: the environment takes all its physics steps within one call."""

    def __init__(self, env: Env):
        self.env, self.cfg = env, env.cfg
        self.num_envs, self.max_episode_length, self.dt = env.num_envs, env.max_episode_length, env.step_dt
        self.device = self.rl_device = str(env.device)
        spaces = env.single_observation_space
        self.observation_space: gymnasium.Space = spaces["policy"]
        self.state_space: gymnasium.Space = spaces["critic"]
        self.action_space: gymnasium.Space = env.single_action_space
        self.num_obs = self.num_observations = sum(env.observation_terms["policy"].values())
        self.num_states = sum(env.observation_terms["critic"].values())
        self.num_acts = self.num_actions = len(env.action_term.names)
        self.rew_buf = torch.zeros(self.num_envs, device=env.device)
        self.reset_buf = torch.ones(self.num_envs, dtype=torch.long, device=env.device)
        self.timeout_buf = torch.zeros(self.num_envs, dtype=torch.bool, device=env.device)
        self.extras: dict[str, Any] = {}

    @property
    def obs_buf(self) -> torch.Tensor:
        """(N, D) the policy's observations."""
        return self.env.obs_buf["policy"]

    @property
    def states_buf(self) -> torch.Tensor:
        """(N, Dc) the critic's observations."""
        return self.env.obs_buf["critic"]

    @property
    def progress_buf(self) -> torch.Tensor:
        """(N,) steps since the last reset."""
        return self.env.episode_length_buf

    @property
    def obs_dict(self) -> Observations:
        """The present observations."""
        return {"obs": self.obs_buf, "states": self.states_buf}

    def reset(self) -> Observations:
        """Return the present observations; like ``VecTask.reset``, this resets nothing."""
        return self.obs_dict

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        """Start a new episode in the worlds ``env_ids`` (n,)."""
        mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.env.device)
        mask[env_ids] = True
        self.env.reset(options={"reset_mask": mask})

    def reset_done(self) -> tuple[Observations, torch.Tensor]:
        """Return the observations and the ids (n,) of the worlds that the last step finished, and reset."""
        return self.obs_dict, self.reset_buf.nonzero().squeeze(-1)

    def step(self, actions: torch.Tensor) -> tuple[Observations, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions (N, A) and return observations, rewards (N,), reset flags (N,) int64 and extras."""
        _, self.rew_buf, terminated, self.timeout_buf, extras = self.env.step(actions)
        self.reset_buf = (terminated | self.timeout_buf).long()
        self.extras = {"time_outs": self.timeout_buf, "episode": extras["log"], "final_obs": extras["final_obs"]}
        return self.obs_dict, self.rew_buf, self.reset_buf, self.extras

    def zero_actions(self) -> torch.Tensor:
        """Return actions (N, A) of zero."""
        return torch.zeros(self.num_envs, self.num_actions, device=self.env.device)

    def get_state(self) -> torch.Tensor:
        """Return the critic's observations (N, Dc)."""
        return self.states_buf

    def get_number_of_agents(self) -> int:
        """Return the agents in each world."""
        return self.num_agents

    def get_env_state(self) -> dict[str, Any]:
        """Return what rl_games keeps in its checkpoints for the environment."""
        return self.env.state_dict()

    def set_env_state(self, state: dict[str, Any] | None) -> None:
        """Continue from a ``get_env_state``; None, which rl_games has for older checkpoints, changes nothing."""
        if state is not None:
            self.env.load_state_dict(state)
