"""What an off-policy critic predicts of the return: its mean, a normal distribution, or probabilities of fixed values.

Each is one shape of call: outputs of E networks (E, N, K) to mean values (E, N), to a target, to a loss against it.
The target's value of the next observation is that of the network whose mean is the lower (Fujimoto et al. 2018).
Targets are float32 throughout.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn


class Critic(nn.Module, ABC):
    """Reads the outputs of an ensemble of action-value networks."""

    outputs: int
    """K, outputs of each network."""

    @abstractmethod
    def mean(self, output: torch.Tensor) -> torch.Tensor:
        """Return the mean return (E, N) of outputs (E, N, K)."""

    @abstractmethod
    def loss(
        self,
        output: torch.Tensor,
        following: torch.Tensor,
        reward: torch.Tensor,
        discount: torch.Tensor,
        bonus: torch.Tensor,
        generator: torch.Generator | None,
    ) -> torch.Tensor:
        """Return the loss () against ``reward + discount * (the next value + bonus)``.

        Args:
            output: (E, N, K) at the observations and actions.
            following: (E, N, K), of the target networks at the next observations; without gradient.
            reward: (N,)
            discount: (N,)
            bonus: (N,)
            generator: where random numbers come from.
        """


class ScalarCritic(Critic):
    """The mean return alone, by squared error."""

    outputs = 1

    def mean(self, output: torch.Tensor) -> torch.Tensor:
        return output.squeeze(-1)

    def loss(
        self,
        output: torch.Tensor,
        following: torch.Tensor,
        reward: torch.Tensor,
        discount: torch.Tensor,
        bonus: torch.Tensor,
        generator: torch.Generator | None,
    ) -> torch.Tensor:
        target = torch.addcmul(reward, discount, following.squeeze(-1).amin(0) + bonus)
        return nn.functional.mse_loss(output.squeeze(-1), target.expand(len(output), -1)) * len(output)


class GaussianCritic(Critic):
    """A normal distribution of the return (Duan et al. 2025, DSAC-T, eqs. 17 to 21).

    The mean follows the target's mean; the variance follows the squared distance of a sample of the target, cut off
    at three running standard deviations. Errors are cut off at 50, and the losses weighted by the inverse variance
    relative to the running one. Where the authors' code takes half the squared distance for the variance to follow,
    we take it whole, whose mean the variance is.
    """

    spread: torch.Tensor
    """(E, 1) running mean of the standard deviation; 0 before the first batch."""

    def __init__(self, members: int, rate: float = 0.005, cutoff: float = 50.0, floor: float = 0.1):
        """Make the critic; ``rate`` of the running mean, ``floor`` added to variances that divide."""
        super().__init__()
        self.outputs = 2
        self.rate, self.cutoff, self.floor = rate, cutoff, floor
        self.register_buffer("spread", torch.zeros(members, 1))

    def mean(self, output: torch.Tensor) -> torch.Tensor:
        return output[..., 0]

    def std(self, output: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation (E, N) of the return."""
        return nn.functional.softplus(output[..., 1])

    def loss(
        self,
        output: torch.Tensor,
        following: torch.Tensor,
        reward: torch.Tensor,
        discount: torch.Tensor,
        bonus: torch.Tensor,
        generator: torch.Generator | None,
    ) -> torch.Tensor:
        mean, std = self.mean(output), self.std(output)
        with torch.no_grad():
            now = std.mean(1, keepdim=True)
            self.spread.copy_(torch.where(self.spread > 0, torch.lerp(self.spread, now, self.rate), now))
            lower, which = following[..., 0].min(0)
            noise = torch.randn(reward.shape, generator=generator, device=reward.device).clamp(-3.0, 3.0)
            sample = lower + noise * self.std(following).gather(0, which[None])[0]
            target = reward + discount * (lower + bonus)
            limit = 3.0 * self.spread
            drawn = mean + (reward + discount * (sample + bonus) - mean).clamp(-limit, limit)
            weight = (self.spread.square() / (std.square() + self.floor)).clamp(0.1, 10.0)
            slope = (std.square() - 2.0 * self._huber(mean, drawn)) / (std + self.floor)
        return (weight * (self._huber(mean, target) + std * slope)).mean(1).sum()

    def _huber(self, value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(value, target.expand_as(value), reduction="none", delta=self.cutoff)


class CategoricalCritic(Critic):
    """Probabilities of fixed values of the return (Bellemare et al. 2017, C51), by cross entropy."""

    atoms: torch.Tensor
    """(K,) the values, evenly spaced."""

    def __init__(self, low: float, high: float, count: int):
        """Make the critic of ``count`` values from low to high."""
        super().__init__()
        self.outputs = count
        self.register_buffer("atoms", torch.linspace(low, high, count))

    def mean(self, output: torch.Tensor) -> torch.Tensor:
        return output.softmax(-1) @ self.atoms

    def loss(
        self,
        output: torch.Tensor,
        following: torch.Tensor,
        reward: torch.Tensor,
        discount: torch.Tensor,
        bonus: torch.Tensor,
        generator: torch.Generator | None,
    ) -> torch.Tensor:
        with torch.no_grad():
            probabilities = following.softmax(-1)
            which = (probabilities @ self.atoms).argmin(0)
            lower = probabilities[which, torch.arange(len(which), device=which.device)]
            values = reward[:, None] + discount[:, None] * (self.atoms + bonus.reshape(-1, 1))
            target = project(lower, values, self.atoms)
        return -(target * output.log_softmax(-1)).sum(-1).mean(1).sum()


def project(probabilities: torch.Tensor, values: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Return the probabilities (N, K) of the atoms (K,) in place of those (N, K) of other values (N, K).

    The mass at a value goes to the two atoms about it in proportion to nearness, which keeps the mean; a value beyond
    the atoms counts as the last of them.
    """
    last = len(atoms) - 1
    place = (values - atoms[0]) / (atoms[-1] - atoms[0]) * last
    place = place.clamp(0, last)
    lower = place.floor()
    share = place - lower
    # At a value on an atom the share of the upper one is 0, whichever it is: no mass is lost at the last atom.
    below, above = lower.long(), (lower.long() + 1).clamp(max=last)
    out = torch.zeros_like(probabilities)
    out.scatter_add_(-1, below, probabilities * (1 - share))
    return out.scatter_add_(-1, above, probabilities * share)
