"""Policy objectives of the on-policy family, by name; most are functions of ratio and advantage alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from robolearn.algorithms.bounded_ratio import BPO
from robolearn.algorithms.penalties import KL, MDPO, R2VPO
from robolearn.algorithms.surrogate import Sample, Surrogate

if TYPE_CHECKING:
    from robolearn.algorithms.ppo import PPOConfig

Pointwise = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""``function(ratio (B,), advantage (B,), epsilon) -> loss (B,)``, to be minimised."""


def clip(ratio: torch.Tensor, advantage: torch.Tensor, epsilon: float) -> torch.Tensor:
    """PPO's clipped surrogate, -min(r A, clip(r, 1 - eps, 1 + eps) A) (Schulman et al. 2017, eq. 7)."""
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def spo(ratio: torch.Tensor, advantage: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Simple policy optimisation, -(r A - |A| (r - 1)^2 / (2 eps)) (Xie et al. 2024): best at r = 1 + eps sign(A)."""
    return advantage.abs() * (ratio - 1).square() / (2 * epsilon) - ratio * advantage


def dropout(ratio: torch.Tensor, advantage: torch.Tensor, epsilon: float) -> torch.Tensor:
    """PPO's clipped surrogate without the steps whose ratio is off by more than 2 eps, after D-PPO (Xie et al. 2023).

    D-PPO drops samples to bound the variance of r A, which grows with the square of the ratio; that what bounds the
    ratio decides is our choice of criterion. The margin beyond eps is where steps that went the wrong way are still
    called back.
    """
    return torch.where((ratio - 1).abs() <= 2 * epsilon, clip(ratio, advantage, epsilon), 0.0)


class OfRatio(Surrogate):
    """A function of ratio and advantage as a surrogate."""

    def __init__(self, function: Pointwise, config: PPOConfig, critic_size: int):
        super().__init__()
        self.function, self.epsilon = function, config.clip

    def forward(self, sample: Sample) -> torch.Tensor:
        return self.function(sample.ratio, sample.advantage, self.epsilon)


SURROGATES: dict[str, Callable[[PPOConfig, int], Surrogate]] = {
    "clip": partial(OfRatio, clip),
    "spo": partial(OfRatio, spo),
    "dropout": partial(OfRatio, dropout),
    "bpo": BPO,
    "r2vpo": R2VPO,
    "mdpo": MDPO,
    "kl": KL,
}
"""What makes each surrogate from the config and the size of the critic's observation, by the name a config gives it."""
