"""What an action's value is measured against: the discounted return, or the average reward."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from robolearn.buffers.replay import Batch


class ValueTarget(nn.Module, ABC):
    """One shape of call for both; learnable parameters are trained with ``loss`` beside the critic."""

    gamma: float
    """Discount factor of each step."""

    @abstractmethod
    def reward(self, batch: Batch) -> torch.Tensor:
        """Return the reward (N,) that the target is made of."""

    @abstractmethod
    def loss(self, batch: Batch, now: Callable[[], torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        """Return the loss () of the target's own parameters.

        Args:
            batch: N transitions.
            now: returns the slow critics' mean values (E, N) at them.
            following: the same at the next observations; without gradient.
        """

    def moved(self, rate: float) -> None:
        """Take note that the target networks moved towards the learned ones at a rate."""
        del rate

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return () tensors to log."""
        return {}


class Discounted(ValueTarget):
    """The discounted return."""

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma

    def reward(self, batch: Batch) -> torch.Tensor:
        return batch.reward

    def loss(self, batch: Batch, now: Callable[[], torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        return following.new_zeros(())


class AverageReward(ValueTarget):
    """The reward in excess of its average, undiscounted (Saxena et al. 2023, ARO-DDPG); for tasks that go on for ever.

    The average is what the temporal difference of the slow critics leaves over (Wan et al. 2021, eq. 6); the critics
    themselves follow their own drift, which would hide it. They see a slow copy of it.
    """

    slow: torch.Tensor
    """() the slow copy of the average reward of a step."""

    gamma = 1.0

    def __init__(self) -> None:
        """Begin at an average of zero."""
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(()))
        self.register_buffer("slow", torch.zeros(()))

    def reward(self, batch: Batch) -> torch.Tensor:
        return batch.reward - batch.steps * self.slow

    def loss(self, batch: Batch, now: Callable[[], torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        excess = batch.reward + batch.discount * following.amin(0) - now().amin(0)
        return (excess - batch.steps * self.rate).square().mean()

    def moved(self, rate: float) -> None:
        self.slow.lerp_(self.rate.detach(), rate)

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"value/average_reward": self.rate.detach().clone()}
