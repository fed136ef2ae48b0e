"""Policy objectives that hold the policy near the old one by a price on the distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from robolearn.algorithms.surrogate import Learner, Sample, Surrogate
from robolearn.constraint import Dual
from robolearn.policies.gaussian import kl_divergence

if TYPE_CHECKING:
    from robolearn.algorithms.ppo import PPOConfig


class R2VPO(Surrogate):
    """Ratio-variance regularised policy optimisation (arXiv 2601.03320): r A - price ((r - 1)^2 - eps^2).

    The variance of the ratio is bounded by eps^2 on average, at a price found by dual ascent.
    """

    def __init__(self, config: PPOConfig, critic_size: int):
        super().__init__()
        self.limit = config.clip**2
        self.dual = Dual(1.0, config.dual_rate)

    def forward(self, sample: Sample) -> torch.Tensor:
        violation = (sample.ratio - 1).square() - self.limit
        price = self.dual.value.clone()  # the update is in place, and the gradient needs the price of now
        self.dual.update(violation.mean())
        return price * violation - sample.ratio * sample.advantage

    def metrics(self) -> dict[str, float]:
        return {"surrogate/price": float(self.dual.value)}


class MDPO(Surrogate):
    """Mirror descent policy optimisation (Tomar et al. 2022, eq. 7): r A - KL(policy || old) / t, t from 1 to 0.

    Several gradient steps on each rollout are what solves the mirror descent step.
    """

    def __init__(self, config: PPOConfig, critic_size: int):
        super().__init__()
        self.price = 1.0

    def begin(self, learner: Learner, progress: float) -> None:
        self.price = 1.0 / max(1.0 - progress, 1e-3)

    def forward(self, sample: Sample) -> torch.Tensor:
        kl = kl_divergence(sample.mean, sample.log_std, sample.old_mean, sample.old_log_std)
        return self.price * kl - sample.ratio * sample.advantage

    def metrics(self) -> dict[str, float]:
        return {"surrogate/price": self.price}


class KL(Surrogate):
    """FixPO (Zentner et al. 2023): r A - price KL(old || policy), and the largest KL of any step is below a limit.

    The price aims at a share of the limit by dual ascent. What is above the limit after the last epoch is brought
    below by steps on the divergence alone, and if those do not get there, by halving the way from the old policy.
    """

    margin = 3.0
    """The price aims at the limit over this."""
    sweeps = 10
    """Passes over the rollout that the steps on the divergence alone may take."""

    def __init__(self, config: PPOConfig, critic_size: int):
        super().__init__()
        self.limit = config.kl_limit
        self.dual = Dual(1.0, config.dual_rate)
        self.steps, self.halvings, self.largest = 0, 0, 0.0

    def begin(self, learner: Learner, progress: float) -> None:
        self._old = [p.detach().clone() for p in learner.policy.parameters()]

    def forward(self, sample: Sample) -> torch.Tensor:
        kl = self._divergence(sample)
        price = self.dual.value.clone()
        self._adapt(kl)
        return price * kl - sample.ratio * sample.advantage

    def finish(self, learner: Learner) -> None:
        self.steps = self.halvings = 0
        for _ in range(self.sweeps):
            before = self.steps
            for sample in learner.samples():
                kl = self._divergence(sample)
                if float(kl.detach().max()) > self.limit:
                    learner.descend((1.0 + self.dual.value) * kl.mean())
                    self._adapt(kl)
                    self.steps += 1
            if self.steps == before:
                break
        while (largest := self._largest(learner)) > self.limit:
            self.halvings += 1
            with torch.no_grad():
                for p, old in zip(learner.policy.parameters(), self._old, strict=True):
                    p.lerp_(old, 0.5)
        self.largest = largest

    def metrics(self) -> dict[str, float]:
        return {
            "surrogate/price": float(self.dual.value),
            "surrogate/largest_kl": self.largest,
            "surrogate/fix_up_steps": float(self.steps),
            "surrogate/fix_up_halvings": float(self.halvings),
        }

    def _adapt(self, kl: torch.Tensor) -> None:
        self.dual.update(self.margin * kl.detach().max() - self.limit)

    @staticmethod
    def _divergence(sample: Sample) -> torch.Tensor:
        return kl_divergence(sample.old_mean, sample.old_log_std, sample.mean, sample.log_std)

    @torch.no_grad()
    def _largest(self, learner: Learner) -> float:
        return max(float(self._divergence(sample).max()) for sample in learner.samples())
