"""What a goal-conditioned environment says of its goals, for hindsight replay."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Judge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From achieved and desired goals, each (B, g), to one value for each, (B,), on the same device."""


@dataclass(frozen=True)
class Goal:
    """Where goals are in the policy's raw observation (N, D), and what reaching them is worth."""

    achieved: slice
    """The columns of what is achieved."""
    desired: slice
    """The columns of what is asked; as many."""
    reward: Judge
    """The reward, float32, of a step that achieved the one where the other was asked."""
    terminated: Judge | None = None
    """Whether such a step ends the episode, bool; None where the goal decides no end."""

    @property
    def size(self) -> int:
        """Numbers in a goal, g."""
        return self.achieved.stop - self.achieved.start
