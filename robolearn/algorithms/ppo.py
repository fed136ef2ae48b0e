"""Proximal policy optimisation (Schulman et al. 2017), for many worlds at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.gae import gae
from robolearn.algorithms.rollout import Rollout
from robolearn.algorithms.surrogates import SURROGATES
from robolearn.policies.gaussian import GaussianPolicy, ValueFunction, entropy, kl_divergence, log_prob
from robolearn.policies.mlp import ACTIVATIONS
from robolearn.policies.normalizer import ReturnScaler
from sim.errors import UserError, unknown
from tasks.env import Env


@dataclass(kw_only=True)
class PPOConfig:
    """Hyper-parameters; the defaults suit a thousand worlds of a legged robot."""

    horizon: int = 24
    """Steps of each world in a rollout."""
    epochs: int = 5
    """Passes over a rollout."""
    minibatches: int = 4
    """Parts of a rollout, one gradient step each."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Decay of the advantage's trace."""
    surrogate: str = "clip"
    """Policy objective, a name in robolearn.algorithms.surrogates."""
    clip: float = 0.2
    """Width of the surrogate's trust region in ratio, epsilon."""
    learning_rate: float = 1e-3
    """Initial learning rate of the policy, and that of the critic."""
    target_kl: float = 0.01
    """KL divergence of an update that the policy's learning rate is adapted to; 0 keeps the rate."""
    learning_rate_decay: bool = False
    """Let the learning rate fall linearly to zero over the run."""
    value_coefficient: float = 1.0
    """Weight of the value loss."""
    entropy_coefficient: float = 0.005
    """Weight of the entropy bonus."""
    symmetry_coefficient: float = 0.0
    """Weight of the mirror loss, for tasks that state their mirror symmetry."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
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
        for name in ("horizon", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        for name in ("clip", "learning_rate", "max_grad_norm", "initial_std"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")
        if self.surrogate not in SURROGATES:
            raise unknown("surrogate", self.surrogate, SURROGATES)
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)


class PPO:
    """Collects a rollout, estimates advantages, and takes clipped policy and value steps on it."""

    Config = PPOConfig
    max_skipped = 100
    """Non-finite gradients in a row that end the run."""

    def __init__(self, env: Env, config: PPOConfig, seed: int = 0):
        self.config = config
        device = env.device
        torch.manual_seed(seed)
        actions = env.single_action_space
        self.policy_size, self.critic_size = (sum(env.observation_terms[g].values()) for g in ("policy", "critic"))
        low, high = torch.from_numpy(actions.low), torch.from_numpy(actions.high)
        self.policy = GaussianPolicy(
            self.policy_size, low, high, config.hidden, config.activation, config.initial_std
        ).to(device)
        self.critic = ValueFunction(self.critic_size, config.hidden, config.activation).to(device)
        self.scaler = ReturnScaler(env.num_envs, config.gamma).to(device) if config.normalize_reward else None
        self.rollout = Rollout(config.horizon, env.num_envs, self.policy_size, self.critic_size, len(low), device)
        self.optimizer = torch.optim.Adam(
            [{"params": self.policy.parameters()}, {"params": self.critic.parameters()}],
            lr=config.learning_rate, eps=1e-5, fused=True,
        )  # fmt: skip
        self.mirrors = env.task.mirrors() if config.symmetry_coefficient else None
        if config.symmetry_coefficient and self.mirrors is None:
            raise UserError("symmetry_coefficient is set, but the task states no mirror symmetry")
        self.surrogate = SURROGATES[config.surrogate]
        self.generator = torch.Generator(device).manual_seed(seed)
        self.started = False
        self.skipped = 0

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one `collect`."""
        return self.rollout.size

    def collect(self, env: Env) -> dict[str, float]:
        """Fill the rollout with the present policy and return means over the episodes that ended."""
        if not self.started:
            env.reset()
            if self.config.spread_episodes:
                lengths = torch.randint(env.max_episode_length, (env.num_envs,), generator=self.generator)
                env.episode_length_buf = lengths.to(env.device)
            self.started = True
        obs, r, means = env.obs_buf, self.rollout, _EpisodeMeans()
        with torch.no_grad():
            for t in range(self.config.horizon):
                mean, log_std = self.policy.distribution(obs["policy"])
                noise = torch.randn(mean.shape, generator=self.generator, device=mean.device)
                u = mean + log_std.exp() * noise
                r.policy_obs[t], r.critic_obs[t] = obs["policy"], obs["critic"]
                r.mean[t], r.u[t], r.log_prob[t] = mean, u, log_prob(u, mean, log_std)
                obs, r.reward[t], r.terminated[t], r.truncated[t], extras = env.step(self.policy.action(u))
                cut = r.truncated[t].nonzero().squeeze(1)
                if len(cut):
                    r.next_value[t, cut] = self.critic(extras["final_obs"]["critic"][cut])
                means.add(extras["log"])
            self.log_std = log_std.clone()
            r.value[:] = self.critic(r.critic_obs)
            following = torch.cat((r.value[1:], self.critic(obs["critic"])[None]))
            r.next_value = torch.where(r.truncated, r.next_value, following)
        return means.result()

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Learn from the rollout.

        Args:
            progress: share of the run that is done, which a decaying learning rate follows.

        Raises:
            UserError: the gradients stay non-finite.
        """
        c, r = self.config, self.rollout
        reward = self.scaler(r.reward, r.terminated | r.truncated) if self.scaler else r.reward
        r.advantage = gae(reward, r.value, r.next_value, r.terminated, r.truncated, c.gamma, c.lam)
        r.target = r.advantage + r.value
        r.advantage = (r.advantage - r.advantage.mean()) / (r.advantage.std() + 1e-8)
        if c.learning_rate_decay:
            for group in self.optimizer.param_groups:
                group["lr"] = c.learning_rate * (1.0 - progress)
        sums: dict[str, torch.Tensor] = {}
        for _ in range(c.epochs):
            for batch in r.minibatches(c.minibatches, self.generator):
                for name, value in self._step(batch).items():
                    sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
        self.policy.normalizer.update(r.policy_obs)
        self.critic.normalizer.update(r.critic_obs)
        updates = c.epochs * c.minibatches
        metrics = {f"loss/{name}": float(value) / updates for name, value in sums.items()}
        metrics["policy/std"] = float(self.log_std.exp().mean())
        metrics["policy/learning_rate"] = self.optimizer.param_groups[0]["lr"]
        spread = r.target.var()
        metrics["value/explained_variance"] = float(1 - (r.target - r.value).var() / spread) if spread > 0 else 0.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "generator": self.generator.get_state(),
            "started": self.started,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"])
        self.started, self.skipped = state["started"], state["skipped"]

    def _step(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        c = self.config
        mean, log_std = self.policy.distribution(batch["policy_obs"])
        ratio = (log_prob(batch["u"], mean, log_std) - batch["log_prob"]).exp()
        policy_loss = self.surrogate(ratio, batch["advantage"], c.clip).mean()
        value_loss = (self.critic(batch["critic_obs"]) - batch["target"]).square().mean()
        loss = policy_loss + c.value_coefficient * value_loss - c.entropy_coefficient * entropy(log_std)
        out = {"policy": policy_loss.detach(), "value": value_loss.detach()}
        if self.mirrors is not None:
            symmetry = mirror_loss(self.policy, batch["policy_obs"], mean, *self._policy_mirrors())
            loss = loss + c.symmetry_coefficient * symmetry
            out["symmetry"] = symmetry.detach()
        with torch.no_grad():
            kl = kl_divergence(batch["mean"], self.log_std, mean, log_std).mean()
            out["kl"] = kl
            out["clip_fraction"] = ((ratio - 1).abs() > c.clip).float().mean()
        self._adapt_learning_rate(float(kl))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, c.max_grad_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            self.skipped = 0
        else:
            self.skipped += 1
            if self.skipped >= self.max_skipped:
                raise UserError(f"{self.skipped} gradients in a row were not finite; lower learning_rate, "
                                "or look for a reward or observation that explodes")  # fmt: skip
        return out

    def _policy_mirrors(self) -> tuple[Any, Any]:
        assert self.mirrors is not None
        return self.mirrors[0]["policy"], self.mirrors[1]

    def _adapt_learning_rate(self, kl: float) -> None:
        """Keep the policy's step near the wanted KL divergence; the critic's rate is its own."""
        target, group = self.config.target_kl, self.optimizer.param_groups[0]
        if target and kl > 2.0 * target:
            group["lr"] = max(1e-5, group["lr"] / 1.5)
        elif target and 0.0 < kl < 0.5 * target:
            group["lr"] = min(1e-2, group["lr"] * 1.5)


def mirror_loss(
    policy: GaussianPolicy, observation: torch.Tensor, mean: torch.Tensor, mirror_obs: Any, mirror_action: Any
) -> torch.Tensor:
    """Return the mean squared difference () between acting in the mirror and mirroring the act.

    Yu, Turk and Liu 2018, "Learning symmetric and low-energy locomotion", eq. 8; the mirrored act is the target, so
    that each observation pulls on one side only.
    """
    mirrored, _ = policy.distribution(mirror_obs(observation))
    return (mirrored - mirror_action(mean).detach()).square().mean()


class _EpisodeMeans:
    """Means of what episodes log when they end, weighted by how many ended."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0.0

    def add(self, log: dict[str, float]) -> None:
        count = log.get("episode/count", 0.0)
        self._count += count
        for name, value in log.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * count

    def result(self) -> dict[str, float]:
        """Return the means; nothing if no episode ended."""
        if not self._count:
            return {"episode/count": 0.0}
        return {name: total / self._count for name, total in self._sums.items()} | {"episode/count": self._count}
