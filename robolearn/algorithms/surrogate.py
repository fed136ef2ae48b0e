"""What a policy objective of the on-policy family is: one shape of call, whatever state it keeps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from robolearn.algorithms.rollout import Rollout
from robolearn.policies.gaussian import GaussianPolicy


@dataclass(frozen=True)
class Sample:
    """B steps of a rollout under the policy and critic as they are now; these carry gradients, the old ones do not."""

    ratio: torch.Tensor
    """(B,) density of the action under the policy over that under the policy it was drawn from."""
    advantage: torch.Tensor
    """(B,) with mean 0 and variance 1 over the rollout."""
    mean: torch.Tensor
    """(B, A) mean of u, the action before scaling."""
    log_std: torch.Tensor
    """(A,) log standard deviation of u."""
    old_mean: torch.Tensor
    """(B, A) of the policy that collected."""
    old_log_std: torch.Tensor
    """(A,) of the policy that collected."""
    critic_obs: torch.Tensor
    """(B, Dc) what the critic saw."""
    value: torch.Tensor
    """(B,)"""
    target: torch.Tensor
    """(B,) the return that the value should become, estimated with the advantage."""


class Learner(Protocol):
    """What a surrogate may use of the algorithm around it before and after the epochs of an update."""

    policy: GaussianPolicy
    rollout: Rollout

    def samples(self) -> Iterator[Sample]:
        """Yield the rollout once, in shuffled minibatches."""
        ...

    def descend(self, loss: torch.Tensor) -> None:
        """Take one gradient step."""
        ...


class Surrogate(nn.Module):
    """A policy objective. What it keeps between updates are its buffers and parameters, part of every checkpoint.

    Its parameters are trained with the critic's.
    """

    def begin(self, learner: Learner, progress: float) -> None:
        """Prepare for an update, ``progress`` (0 to 1) into the run."""

    def forward(self, sample: Sample) -> torch.Tensor:
        """Return the loss (B,) of each step, to be minimised; its gradient where the ratio is 1 is -advantage."""
        raise NotImplementedError

    def finish(self, learner: Learner) -> None:
        """Conclude an update, after its last epoch."""

    def metrics(self) -> dict[str, float]:
        """Return what there is to log of the last update."""
        return {}
