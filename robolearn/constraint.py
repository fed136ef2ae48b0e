"""Dual variables: the prices of constraints."""

import torch
from torch import nn


class Dual(nn.Module):
    """The price of a constraint g <= 0, found by projected dual ascent: it rises while g > 0 and falls to 0 otherwise.

    Boyd and Vandenberghe 2004, section 5.2, and Bertsekas 2016, section 7.3 for the ascent.
    """

    value: torch.Tensor
    """() the price, never negative."""

    def __init__(self, initial: float, rate: float):
        """Begin at a price, and change it by ``rate`` times the violation in each update."""
        super().__init__()
        self.rate = rate
        self.register_buffer("value", torch.tensor(float(initial)))

    @torch.no_grad()
    def update(self, violation: torch.Tensor) -> None:
        """Take a step for a violation g (); one that is not finite changes nothing."""
        moved = (self.value + self.rate * violation).clamp(min=0.0)
        self.value.copy_(torch.where(torch.isfinite(moved), moved, self.value))
