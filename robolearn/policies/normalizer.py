"""Running statistics as module buffers, so that checkpoint, evaluation and export cannot disagree on them."""

import torch
from torch import nn


class Normalizer(nn.Module):
    """Shifts and scales observations (N, D) by running statistics and clips the result to [-limit, limit].

    The statistics change only in `update`: they stay as they are while a rollout is collected and learned from.
    """

    mean: torch.Tensor
    """(D,) float64 running mean."""
    var: torch.Tensor
    """(D,) float64 running variance."""
    count: torch.Tensor
    """() float64 number of rows seen."""
    shift: torch.Tensor
    """(D,) float32, what `forward` subtracts."""
    scale: torch.Tensor
    """(D,) float32, what `forward` multiplies by."""

    def __init__(self, size: int, limit: float = 10.0, epsilon: float = 1e-4):
        super().__init__()
        self.limit, self.epsilon = limit, epsilon
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Normalise observations (N, D)."""
        return ((observation - self.shift) * self.scale).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, observation: torch.Tensor) -> None:
        """Take in rows (N, D), weighted like all rows before (Chan et al. 1979, parallel variance)."""
        rows = observation.reshape(-1, observation.shape[-1]).double()
        if not len(rows):
            return
        n, total = rows.shape[0], self.count + rows.shape[0]
        delta = rows.mean(0) - self.mean
        moments = self.var * self.count + rows.var(0, correction=0) * n + delta.square() * self.count * n / total
        self.mean += delta * n / total
        self.var.copy_(moments / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + self.epsilon).rsqrt())


class ReturnScaler(nn.Module):
    """Scales rewards by the running standard deviation of the discounted return, each episode's on its own."""

    ret: torch.Tensor
    """(N,) discounted return so far in the running episode of each world."""

    def __init__(self, num_envs: int, gamma: float):
        super().__init__()
        self.gamma = gamma
        self.statistics = Normalizer(1)
        self.register_buffer("ret", torch.zeros(num_envs))

    @torch.no_grad()
    def forward(self, reward: torch.Tensor, done: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        """Take in rewards and ends of a rollout, both (T, N), and return the scaled rewards (T, N).

        A row that is no step of an episode, by ``valid`` (T, N), counts for nothing and ends the return.
        """
        valid = torch.ones_like(done) if valid is None else valid
        returns = torch.empty_like(reward)
        for t in range(len(reward)):
            self.ret.mul_(self.gamma).add_(reward[t])
            returns[t] = self.ret
            self.ret *= ~done[t] & valid[t]
        self.statistics.update(returns[valid][:, None])
        return reward * self.statistics.scale
