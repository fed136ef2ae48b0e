"""What PPO and TRPO share: the rollout, the advantages and the statistics around a policy step."""

from dataclasses import dataclass
from typing import Any

import torch

from robolearn.algorithms.episodes import EpisodeMeans
from robolearn.algorithms.gae import gae
from robolearn.algorithms.rollout import Rollout
from robolearn.policies.gaussian import GaussianPolicy, ValueFunction, log_prob
from robolearn.policies.mlp import ACTIVATIONS
from robolearn.policies.normalizer import ReturnScaler
from sim.errors import UserError, unknown
from tasks.vector_env import VectorEnv


@dataclass(kw_only=True)
class OnPolicyConfig:
    """Hyper-parameters of every on-policy algorithm; the defaults suit a thousand worlds of a legged robot."""

    horizon: int = 24
    """Steps of each world in a rollout."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Decay of the advantage's trace."""
    normalize_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return."""
    hidden: tuple[int, ...] = (256, 128, 64)
    """Sizes of the hidden layers of policy and critic."""
    activation: str = "elu"
    """Activation between them."""
    initial_std: float = 0.5
    """Initial standard deviation of the action as a share of half its range."""
    spread_episodes: bool = True
    """Start the worlds at random times of their episodes, so that they do not all end at once."""

    def __post_init__(self) -> None:
        self._require_counts("horizon")
        self._require_positive("initial_std")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)

    def _require_counts(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")

    def _require_positive(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")


class OnPolicy:
    """Collects rollouts and estimates their advantages; a subclass learns from them in ``update``."""

    max_skipped = 100
    """Non-finite gradients in a row that end the run."""
    log_std: torch.Tensor
    """(A,) log standard deviation that the rollout was drawn with."""

    def __init__(self, env: VectorEnv, config: OnPolicyConfig, seed: int = 0):
        device = env.device
        torch.manual_seed(seed)
        self._horizon, self._gamma, self._lam = config.horizon, config.gamma, config.lam
        self._spread_episodes = config.spread_episodes
        actions = env.single_action_space
        self.policy_size, self.critic_size = (sum(env.observation_terms[g].values()) for g in ("policy", "critic"))
        low, high = torch.from_numpy(actions.low), torch.from_numpy(actions.high)
        self.policy = GaussianPolicy(
            self.policy_size, low, high, config.hidden, config.activation, config.initial_std
        ).to(device)
        self.critic = ValueFunction(self.critic_size, config.hidden, config.activation).to(device)
        self.scaler = ReturnScaler(env.num_envs, config.gamma).to(device) if config.normalize_reward else None
        self.rollout = Rollout(config.horizon, env.num_envs, self.policy_size, self.critic_size, len(low), device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.started = False
        self.skipped = 0

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one `collect`."""
        return self.rollout.size

    def collect(self, env: VectorEnv) -> dict[str, float]:
        """Fill the rollout with the present policy and return means over the episodes that ended."""
        if not self.started:
            env.reset()
            if self._spread_episodes and env.max_episode_length:
                lengths = torch.randint(env.max_episode_length, (env.num_envs,), generator=self.generator)
                env.episode_length_buf = lengths.to(env.device)
            self.started = True
        means = EpisodeMeans()
        self._fill(env, means)
        while not self.rollout.valid.any():  # there is nothing to learn from yet
            self._fill(env, means)
        return means.result()

    def _fill(self, env: VectorEnv, means: EpisodeMeans) -> None:
        obs, r = env.obs_buf, self.rollout
        everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        with torch.no_grad():
            for t in range(self._horizon):
                mean, log_std = self.policy.distribution(obs["policy"])
                noise = torch.randn(mean.shape, generator=self.generator, device=mean.device)
                u = mean + log_std.exp() * noise
                r.policy_obs[t], r.critic_obs[t] = obs["policy"], obs["critic"]
                r.mean[t], r.u[t], r.log_prob[t] = mean, u, log_prob(u, mean, log_std)
                obs, r.reward[t], r.terminated[t], r.truncated[t], extras = env.step(self.policy.action(u))
                r.valid[t] = extras.get("valid", everywhere)
                cut = r.truncated[t].nonzero().squeeze(1)
                if len(cut):
                    r.next_value[t, cut] = self.critic(extras["final_obs"]["critic"][cut])
                means.add(extras["log"])
            self.log_std = log_std.clone()
            r.value[:] = self.critic(r.critic_obs)
            following = torch.cat((r.value[1:], self.critic(obs["critic"])[None]))
            r.next_value = torch.where(r.truncated, r.next_value, following)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "generator": self.generator.get_state(),
            "started": self.started,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"])
        self.started, self.skipped = state["started"], state["skipped"]

    def _estimate(self) -> None:
        """Fill in the rollout's advantages, normalised over it, and the targets of its values."""
        r = self.rollout
        reward = self.scaler(r.reward, r.terminated | r.truncated, r.valid) if self.scaler else r.reward
        r.advantage = gae(reward, r.value, r.next_value, r.terminated, r.truncated, self._gamma, self._lam, r.valid)
        r.target = r.advantage + r.value
        advantage = r.flat("advantage")
        r.advantage = (r.advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def _conclude(self) -> dict[str, float]:
        """Take the rollout into the observation statistics and return the metrics of any on-policy update."""
        r = self.rollout
        self.policy.normalizer.update(r.flat("policy_obs"))
        self.critic.normalizer.update(r.flat("critic_obs"))
        metrics = {"policy/std": float(self.log_std.exp().mean())}
        target = r.flat("target")
        spread, rest = target.var(), (target - r.flat("value")).var()
        metrics["value/explained_variance"] = float(1 - rest / spread) if spread > 0 else 0.0
        return metrics

    def _usable(self, norm: torch.Tensor) -> bool:
        """Return whether a gradient's norm () is finite; too many in a row that are not end the run."""
        if torch.isfinite(norm):
            self.skipped = 0
            return True
        self.skipped += 1
        if self.skipped >= self.max_skipped:
            raise UserError(f"{self.skipped} gradients in a row were not finite; lower learning_rate, "
                            "or look for a reward or observation that explodes")  # fmt: skip
        return False
