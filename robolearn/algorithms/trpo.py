"""Trust region policy optimisation (Schulman et al. 2015), for many worlds at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.conjugate_gradient import conjugate_gradient, flat_gradient, hessian_product
from robolearn.algorithms.onpolicy import OnPolicy, OnPolicyConfig
from robolearn.policies.gaussian import kl_divergence, log_prob
from tasks.vector_env import VectorEnv


@dataclass(kw_only=True)
class TRPOConfig(OnPolicyConfig):
    """Hyper-parameters; the defaults suit a thousand worlds of a legged robot."""

    max_kl: float = 0.01
    """Mean KL divergence over the rollout that no policy step exceeds."""
    cg_iterations: int = 15
    """Conjugate-gradient iterations behind the step's direction."""
    damping: float = 0.1
    """Added to the Fisher matrix's diagonal."""
    backtracks: int = 10
    """Step sizes tried, each 0.8 times the one before."""
    epochs: int = 10
    """Passes of the critic over a rollout."""
    minibatches: int = 4
    """Parts of a rollout, one gradient step of the critic each."""
    learning_rate: float = 1e-3
    """Learning rate of the critic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_counts("cg_iterations", "backtracks", "epochs", "minibatches")
        self._require_positive("max_kl", "damping", "learning_rate")


class TRPO(OnPolicy):
    """Takes one natural-gradient step of the policy on each rollout, as long as a KL divergence allows.

    The critic is fitted afterwards, by epochs of minibatches.
    """

    Config = TRPOConfig

    def __init__(self, env: VectorEnv, config: TRPOConfig, seed: int = 0):
        super().__init__(env, config, seed)
        self.config = config
        self.optimizer = torch.optim.Adam(self.critic.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Learn from the rollout; ``progress`` into the run changes nothing.

        Raises:
            UserError: the gradients stay non-finite.
        """
        self._estimate()
        return self._policy_step() | self._fit_critic() | self._conclude()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        return super().state_dict() | {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])

    def _policy_step(self) -> dict[str, float]:
        """Move the policy along the natural gradient, or leave it exactly as it is if no step size will do."""
        c, parameters = self.config, list(self.policy.parameters())
        objective, kl = self._objective_and_kl()
        gradient = flat_gradient(objective, parameters, retain_graph=True)
        metrics = {"loss/policy": -float(objective.detach()), "loss/kl": 0.0, "policy/step_size": 0.0}
        if not self._usable(gradient.norm()) or not gradient.any():
            return metrics
        fisher = hessian_product(kl, parameters, c.damping)
        direction = conjugate_gradient(fisher, gradient, c.cg_iterations)
        direction *= (2 * c.max_kl / direction.dot(fisher(direction))).sqrt()
        old = [p.detach().clone() for p in parameters]
        size = 1.0
        for _ in range(c.backtracks):
            self._place(old, size * direction)
            with torch.no_grad():
                reached, distance = self._objective_and_kl()
            if reached > objective and distance <= c.max_kl:
                return {"loss/policy": -float(reached), "loss/kl": float(distance), "policy/step_size": size}
            size *= 0.8
        self._place(old, torch.zeros_like(direction))
        return metrics

    def _objective_and_kl(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean of ratio times advantage () and the mean KL divergence from the old policy ()."""
        observation, u, old_mean, old_log_prob, advantage = map(
            self.rollout.flat, ("policy_obs", "u", "mean", "log_prob", "advantage")
        )
        mean, log_std = self.policy.distribution(observation)
        ratio = (log_prob(u, mean, log_std) - old_log_prob).exp()
        return (ratio * advantage).mean(), kl_divergence(old_mean, self.log_std, mean, log_std).mean()

    @torch.no_grad()
    def _place(self, old: list[torch.Tensor], step: torch.Tensor) -> None:
        """Set the policy's parameters to the old ones plus a step (P,)."""
        parts = step.split([p.numel() for p in old])
        for p, start, part in zip(self.policy.parameters(), old, parts, strict=True):
            p.copy_(start + part.view_as(start))

    def _fit_critic(self) -> dict[str, float]:
        c = self.config
        total, steps = torch.zeros((), device=self.rollout.reward.device), 0
        for _ in range(c.epochs):
            for batch in self.rollout.minibatches(c.minibatches, self.generator):
                loss = (self.critic(batch["critic_obs"]) - batch["target"]).square().mean()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                if self._usable(
                    nn.utils.get_total_norm([p.grad for p in self.critic.parameters() if p.grad is not None])
                ):
                    self.optimizer.step()
                total += loss.detach()
                steps += 1
        return {"loss/value": float(total) / steps}
