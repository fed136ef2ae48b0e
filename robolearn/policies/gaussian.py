"""A Gaussian policy with a spread of its own for each action, and the value function beside it."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from robolearn.policies.mlp import MLP
from robolearn.policies.normalizer import Normalizer


class GaussianPolicy(nn.Module):
    """Raw observations (N, D) to actions (N, A): ``action = centre + scale * u`` with u ~ N(mean(observation), std).

    ``scale`` is ``initial_std`` times half the action range, so that u starts with standard deviation 1 in every
    task. Actions are not clipped here: the environment and the exported contract clip them.
    """

    centre: torch.Tensor
    """(A,) middle of the action range, in the action's unit."""
    scale: torch.Tensor
    """(A,) what one unit of u means in the action's unit."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        hidden: Sequence[int] = (256, 128, 64),
        activation: str = "elu",
        initial_std: float = 0.5,
        min_std: float = 0.05,
    ):
        """Make the policy for actions between low and high, both (A,).

        Args:
            observation_size: D.
            low: lower bounds of the action.
            high: upper bounds of the action.
            hidden: sizes of the hidden layers.
            activation: name in `robolearn.policies.mlp.ACTIVATIONS`.
            initial_std: initial standard deviation as a share of half the action range.
            min_std: the standard deviation never falls below this share of the initial one.
        """
        super().__init__()
        self.normalizer = Normalizer(observation_size)
        self.network = MLP(observation_size, len(low), hidden, activation, output_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(len(low)))
        self.min_log_std = math.log(min_std)
        self.register_buffer("centre", (low + high) / 2)
        self.register_buffer("scale", initial_std * (high - low) / 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the mean action (N, A) for raw observations (N, D): what is exported."""
        return self.centre + self.scale * self.network(self.normalizer(observation))

    def distribution(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean (N, A) and the log standard deviation (A,) of u."""
        return self.network(self.normalizer(observation)), self.log_std.clamp(self.min_log_std, 2.0)

    def action(self, u: torch.Tensor) -> torch.Tensor:
        """Return the action (N, A) of u (N, A)."""
        return self.centre + self.scale * u

    @torch.no_grad()
    def act(
        self, observation: torch.Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return actions (N, A), unclipped, for raw observations (N, D)."""
        mean, log_std = self.distribution(observation)
        if deterministic:
            return self.action(mean)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return self.action(mean + log_std.exp() * noise)


class ValueFunction(nn.Module):
    """Raw critic observations (N, Dc) to values (N,)."""

    def __init__(self, observation_size: int, hidden: Sequence[int] = (256, 128, 64), activation: str = "elu"):
        super().__init__()
        self.normalizer = Normalizer(observation_size)
        self.network = MLP(observation_size, 1, hidden, activation)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the value (N,) of raw critic observations (N, Dc)."""
        return self.network(self.normalizer(observation)).squeeze(-1)


def log_prob(u: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return the log density (N,) of u (N, A) under independent normals of mean (N, A) and log std (A,) or (N, A)."""
    z = (u - mean) * (-log_std).exp()
    return -0.5 * z.square().sum(-1) - (log_std + 0.5 * math.log(2 * math.pi)).expand_as(z).sum(-1)


def kl_divergence(
    mean_p: torch.Tensor, log_std_p: torch.Tensor, mean_q: torch.Tensor, log_std_q: torch.Tensor
) -> torch.Tensor:
    """Return KL(p || q) (N,) of independent normals, in closed form."""
    ratio = (2 * (log_std_p - log_std_q)).exp()
    distance = ((mean_p - mean_q) * (-log_std_q).exp()).square()
    return 0.5 * (ratio + distance - 1.0 - 2 * (log_std_p - log_std_q)).sum(-1)


def entropy(log_std: torch.Tensor) -> torch.Tensor:
    """Return the entropy () of independent normals of log std (A,)."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
