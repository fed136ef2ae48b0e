"""Proximal policy optimisation (Schulman et al. 2017) and its relatives, for many worlds at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.onpolicy import OnPolicy, OnPolicyConfig
from robolearn.algorithms.surrogate import Sample
from robolearn.algorithms.surrogates import SURROGATES
from robolearn.policies.gaussian import GaussianPolicy, entropy, kl_divergence, log_prob
from sim.errors import UserError, unknown
from tasks.vector_env import VectorEnv


@dataclass(kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Hyper-parameters; the defaults suit a thousand worlds of a legged robot."""

    epochs: int = 5
    """Passes over a rollout."""
    minibatches: int = 4
    """Parts of a rollout, one gradient step each."""
    surrogate: str = "clip"
    """Policy objective: clip, spo, dropout, bpo, r2vpo, mdpo or kl."""
    clip: float = 0.2
    """Width of the surrogate's trust region in ratio, epsilon."""
    temperature: float = 1e-3
    """Width of bpo's step from the lower to the upper ratio, in standard deviations of the return."""
    kl_limit: float = 0.2
    """Largest KL divergence of any step of a rollout after an update, for kl."""
    dual_rate: float = 0.1
    """Change of the price that r2vpo and kl put on distance, for each gradient step and unit of violation."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("epochs", "minibatches")
        self._require_positive("clip", "temperature", "kl_limit", "dual_rate", "learning_rate", "max_grad_norm")
        if self.surrogate not in SURROGATES:
            raise unknown("surrogate", self.surrogate, SURROGATES)


class PPO(OnPolicy):
    """Takes policy steps on a surrogate, and value steps beside them, in epochs of minibatches over each rollout."""

    Config = PPOConfig

    def __init__(self, env: VectorEnv, config: PPOConfig, seed: int = 0):
        super().__init__(env, config, seed)
        self.config = config
        self.surrogate = SURROGATES[config.surrogate](config, self.critic_size).to(env.device)
        self.optimizer = torch.optim.Adam(
            [{"params": self.policy.parameters()},
             {"params": [*self.critic.parameters(), *self.surrogate.parameters()]}],
            lr=config.learning_rate, eps=1e-5, fused=True,
        )  # fmt: skip
        self.mirrors = env.mirrors() if config.symmetry_coefficient else None
        if config.symmetry_coefficient and self.mirrors is None:
            raise UserError("symmetry_coefficient is set, but the task states no mirror symmetry")

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Learn from the rollout.

        Args:
            progress: share of the run that is done, which a decaying learning rate follows.

        Raises:
            UserError: the gradients stay non-finite.
        """
        c = self.config
        self._estimate()
        if c.learning_rate_decay:
            for group in self.optimizer.param_groups:
                group["lr"] = c.learning_rate * (1.0 - progress)
        self.surrogate.begin(self, progress)
        sums: dict[str, torch.Tensor] = {}
        updates = 0
        for _ in range(c.epochs):
            for batch in self.rollout.minibatches(c.minibatches, self.generator):
                updates += 1
                for name, value in self._step(batch).items():
                    sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
        self.surrogate.finish(self)
        metrics = {f"loss/{name}": float(value) / updates for name, value in sums.items()}
        metrics |= self.surrogate.metrics()
        metrics["policy/learning_rate"] = self.optimizer.param_groups[0]["lr"]
        return metrics | self._conclude()

    def samples(self) -> Iterator[Sample]:
        """Yield the rollout once, in shuffled minibatches, under the present policy and critic."""
        for batch in self.rollout.minibatches(self.config.minibatches, self.generator):
            yield self._sample(batch)

    def descend(self, loss: torch.Tensor) -> None:
        """Take one step of the optimiser down the gradient of a loss (), unless the gradient is not finite.

        Raises:
            UserError: it has not been for too long.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        if self._usable(norm):
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        own = {"optimizer": self.optimizer.state_dict(), "surrogate": self.surrogate.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        super().load_state_dict(state)
        self.surrogate.load_state_dict(state["surrogate"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _sample(self, batch: dict[str, torch.Tensor]) -> Sample:
        mean, log_std = self.policy.distribution(batch["policy_obs"])
        return Sample(
            ratio=(log_prob(batch["u"], mean, log_std) - batch["log_prob"]).exp(),
            advantage=batch["advantage"],
            mean=mean,
            log_std=log_std,
            old_mean=batch["mean"],
            old_log_std=self.log_std,
            critic_obs=batch["critic_obs"],
            value=self.critic(batch["critic_obs"]),
            target=batch["target"],
        )

    def _step(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        c, s = self.config, self._sample(batch)
        policy_loss = self.surrogate(s).mean()
        value_loss = (s.value - s.target).square().mean()
        loss = policy_loss + c.value_coefficient * value_loss - c.entropy_coefficient * entropy(s.log_std)
        out = {"policy": policy_loss.detach(), "value": value_loss.detach()}
        if self.mirrors is not None:
            symmetry = mirror_loss(self.policy, batch["policy_obs"], s.mean, *self._policy_mirrors())
            loss = loss + c.symmetry_coefficient * symmetry
            out["symmetry"] = symmetry.detach()
        with torch.no_grad():
            kl = kl_divergence(s.old_mean, s.old_log_std, s.mean, s.log_std).mean()
            out["kl"] = kl
            out["clip_fraction"] = ((s.ratio - 1).abs() > c.clip).float().mean()
        self._adapt_learning_rate(float(kl))
        self.descend(loss)
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
