"""Policy objectives of the on-policy family: each maps ratio and advantage, both (B,), to a loss for each sample."""

from collections.abc import Callable

import torch

Surrogate = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""``surrogate(ratio (B,), advantage (B,), epsilon) -> loss (B,)``, to be minimised."""


def clip(ratio: torch.Tensor, advantage: torch.Tensor, epsilon: float) -> torch.Tensor:
    """PPO's clipped surrogate, -min(r A, clip(r, 1 - eps, 1 + eps) A) (Schulman et al. 2017, eq. 7)."""
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
    return -torch.minimum(ratio * advantage, clipped * advantage)


SURROGATES: dict[str, Surrogate] = {"clip": clip}
"""The surrogates by the name a config gives them."""
