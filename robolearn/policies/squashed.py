"""Policies whose actions lie inside their bounds: what the off-policy algorithms learn.

Every policy maps raw observations (N, D) to ``centre + half_range * tanh(u)``. Inside the algorithms an action is
``tanh(u)``, in the unit box; a log density is one of that unit action.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.policies.ensemble import MLPEnsemble
from robolearn.policies.gaussian import log_prob as normal_log_prob
from robolearn.policies.normalizer import Normalizer


@dataclass(frozen=True)
class Sample:
    """Actions drawn for N observations."""

    action: torch.Tensor
    """(N, A) in the unit box."""
    u: torch.Tensor
    """(N, A) before the tanh."""
    log_prob: torch.Tensor
    """(N,) log density of the action in the unit box; zeros from a policy without one."""


_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

Objective = Callable[[Sample], tuple[torch.Tensor, torch.Tensor]]
"""From a sample of M * N actions to its loss (M * N,) and its value (M * N,)."""


class SquashedPolicy(nn.Module, ABC):
    """What all heads share: normaliser, network and bounds."""

    centre: torch.Tensor
    """(A,) middle of the action range, in the action's unit."""
    half_range: torch.Tensor
    """(A,) half of it."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        outputs_per_action: int = 1,
        extra_outputs: int = 0,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        precision: str = "float32",
        normalize: bool = False,
    ):
        """Make the policy for actions between low and high, both (A,)."""
        super().__init__()
        self.normalizer = Normalizer(observation_size) if normalize else None
        outputs = outputs_per_action * len(low) + extra_outputs
        self.network = MLPEnsemble(1, observation_size, outputs, hidden, activation, precision)
        self.register_buffer("centre", (low + high) / 2)
        self.register_buffer("half_range", (high - low) / 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the deterministic action (N, A) for raw observations (N, D): what is exported."""
        output = self.network(self.normalized(observation))[0]
        return self.to_env(torch.tanh(self.mode(output)))

    def normalized(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the observations (N, D) as the network sees them."""
        return observation if self.normalizer is None else self.normalizer(observation)

    def output(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the network's output (N, K) for raw observations (N, D), on the fast path."""
        return self.network.fused(self.normalized(observation))[0]

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        """Return an action (N, A) of the unit box in the action's unit."""
        return self.centre + self.half_range * action

    @torch.no_grad()
    def act(
        self, observation: torch.Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return actions (N, A) in the action's unit for raw observations (N, D)."""
        return self(observation) if deterministic else self.to_env(self.explore(observation, generator))

    def explore(self, observation: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """Return actions (N, A) of the unit box to gather experience with."""
        return self.sample(self.output(observation), generator).action

    def target(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        """Return the actions that the value of the next observation is taken at."""
        return self.sample(output, generator)

    def improve(
        self, output: torch.Tensor, objective: Objective, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, Sample]:
        """Return the policy's loss () under an objective, and the sample it was taken at."""
        sample = self.sample(output, generator)
        return objective(sample)[0].mean(), sample

    @abstractmethod
    def mode(self, output: torch.Tensor) -> torch.Tensor:
        """Return the deterministic u (N, A)."""

    @abstractmethod
    def sample(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        """Return reparameterised actions for the network's output (N, K)."""

    @abstractmethod
    def log_prob(self, output: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return the log density (N,) of tanh(u), u (N, A), in the unit box."""


class DeterministicPolicy(SquashedPolicy):
    """One action for each observation, with noise added to explore and to smooth the target (Fujimoto et al. 2018)."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        exploration_noise: tuple[float, float] = (0.1, 0.1),
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        **network: Any,
    ):
        """Make the policy.

        Args:
            observation_size: D.
            low: (A,) lower bounds of the action.
            high: (A,) upper bounds of the action.
            exploration_noise: smallest and largest standard deviation, spread evenly over the worlds; in units of half
                the action range, like the following.
            target_noise: standard deviation of the noise on the target's action.
            target_noise_clip: where that noise is cut off.
            network: as for `SquashedPolicy`.
        """
        super().__init__(observation_size, low, high, 1, **network)
        self.exploration_noise = exploration_noise
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip

    def mode(self, output: torch.Tensor) -> torch.Tensor:
        return output

    def sample(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        return Sample(torch.tanh(output), output, output.new_zeros(len(output)))

    def log_prob(self, output: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return output.new_zeros(len(output))

    def explore(self, observation: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        action = torch.tanh(self.output(observation))
        spread = torch.linspace(*self.exploration_noise, len(action), device=action.device)[:, None]
        return (action + spread * _normal(action, generator)).clamp(-1.0, 1.0)

    def target(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        action = torch.tanh(output)
        if self.target_noise:
            limit = self.target_noise_clip
            noise = (self.target_noise * _normal(action, generator)).clamp(-limit, limit)
            action = (action + noise).clamp(-1.0, 1.0)
        return Sample(action, output, output.new_zeros(len(output)))


class TanhGaussianPolicy(SquashedPolicy):
    """A normal distribution of u for each observation (Haarnoja et al. 2018)."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        log_std_range: tuple[float, float] = (-20.0, 2.0),
        **network: Any,
    ):
        """Make the policy; the log standard deviation of u is clamped to a range."""
        super().__init__(observation_size, low, high, 2, **network)
        self.log_std_range = log_std_range

    def mode(self, output: torch.Tensor) -> torch.Tensor:
        return output[:, : len(self.centre)]

    def sample(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        mean, log_std = output.chunk(2, -1)
        noise = _normal(mean, generator)
        drawn: Any = _TanhNormal.apply(mean, log_std, noise, *self.log_std_range)
        return Sample(*drawn)

    def log_prob(self, output: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        mean, log_std = output.chunk(2, -1)
        return tanh_log_prob(u, mean, log_std.clamp(*self.log_std_range))


class _TanhNormal(torch.autograd.Function):
    """Of u = mean + exp(clamp(log_std)) * noise: tanh(u), u and the log density of the first, as one autograd node."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor, low: float, high: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        clamped = log_std.clamp(low, high)
        spread = clamped.exp().mul_(noise)
        u = mean + spread
        action = torch.tanh(u)
        density = noise.square().mul_(0.5).add_(clamped).add_(tanh_log_slope(u)).sum(-1)
        ctx.save_for_backward(action, spread, log_std == clamped)
        return action, u, -density - noise.shape[-1] * _HALF_LOG_TWO_PI

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, action_gradient: torch.Tensor, u_gradient: torch.Tensor, density_gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        action, spread, inside = ctx.saved_tensors
        density = density_gradient[:, None]
        # d tanh(u) / du = 1 - tanh(u)^2 and d log(1 - tanh(u)^2) / du = -2 tanh(u), exact also in saturation.
        u = torch.addcmul(u_gradient, action_gradient, 1 - action.square()).addcmul_(density, action, value=2.0)
        return u, torch.addcmul(-density, u, spread).mul_(inside), None, None, None


class MixturePolicy(SquashedPolicy):
    """K normal distributions of u for each observation, chosen among by weights (Ren et al. 2021, PMOE).

    Every expert proposes an action; the objective is taken at the proposal of the highest value, and the weights are
    drawn towards the expert that made it.
    """

    indices: torch.Tensor
    """(K,) 0, 1, ..."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        experts: int = 4,
        log_std_range: tuple[float, float] = (-20.0, 2.0),
        **network: Any,
    ):
        """Make the policy with K = ``experts``."""
        super().__init__(observation_size, low, high, 2 * experts, experts, **network)
        self.experts, self.log_std_range = experts, log_std_range
        self.register_buffer("indices", torch.arange(experts), persistent=False)

    def mode(self, output: torch.Tensor) -> torch.Tensor:
        k, a = self.experts, len(self.centre)
        likeliest = (output[:, :k].argmax(-1, keepdim=True) == self.indices).to(output.dtype)
        # Slices, since the exporter loses the number of actions in a reshape.
        first, *others = (likeliest[:, i : i + 1] * output[:, k + i * a : k + (i + 1) * a] for i in range(k))
        return sum(others, first)

    def sample(self, output: torch.Tensor, generator: torch.Generator | None) -> Sample:
        logits, mean, log_std = self._experts(output)
        # The first of exponential clocks to ring, at the components' rates: like a multinomial, without its checks.
        clocks = torch.empty_like(logits).exponential_(generator=generator)
        which = (logits.detach().softmax(-1) / clocks).argmax(-1)
        u = self._proposals(mean, log_std, generator)
        return self._at(output, self._chosen(u, which))

    def log_prob(self, output: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        logits, mean, log_std = self._experts(output)
        each = normal_log_prob(u[:, None], mean, log_std)  # (N, K)
        return torch.logsumexp(logits.log_softmax(-1) + each, -1) - tanh_log_slope(u).sum(-1)

    def improve(
        self, output: torch.Tensor, objective: Objective, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, Sample]:
        logits, mean, log_std = self._experts(output)
        u = self._proposals(mean, log_std, generator)
        # The weights learn from the gating alone: through the density they could hide the chosen expert without end.
        fixed = torch.cat((logits.detach(), output[:, self.experts :]), 1)
        every = self._at(fixed.repeat_interleave(self.experts, 0), u.flatten(0, 1))
        loss, value = (x.unflatten(0, (-1, self.experts)) for x in objective(every))
        best = value.argmax(-1)
        gating = (logits.softmax(-1) - (best[:, None] == self.indices).float()).square().mean()
        index = torch.arange(len(best), device=best.device) * self.experts + best
        sample = Sample(every.action[index], every.u[index], every.log_prob[index])
        return loss.gather(1, best[:, None]).mean() + gating, sample

    def _experts(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits (N, K), means and log standard deviations (N, K, A)."""
        k, a = self.experts, len(self.centre)
        logits, mean, log_std = output[:, :k], output[:, k : k + k * a], output[:, k + k * a :]
        return logits, mean.reshape(-1, k, a), log_std.reshape(-1, k, a).clamp(*self.log_std_range)

    def _proposals(self, mean: torch.Tensor, log_std: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        return mean + log_std.exp() * _normal(mean, generator)

    def _chosen(self, values: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """Return the rows (N, A) of values (N, K, A) that ``which`` (N,) names."""
        mask = which[:, None] == self.indices
        return (mask[:, :, None] * values).sum(1)

    def _at(self, output: torch.Tensor, u: torch.Tensor) -> Sample:
        return Sample(torch.tanh(u), u, self.log_prob(output, u))


HEADS: dict[str, type[SquashedPolicy]] = {
    "deterministic": DeterministicPolicy,
    "tanh_gaussian": TanhGaussianPolicy,
    "mixture": MixturePolicy,
}
"""The policies by the name a config gives them."""


def tanh_log_slope(u: torch.Tensor) -> torch.Tensor:
    """Return log(1 - tanh(u)^2), exact also where the tanh has saturated: 2 (log 2 - u - softplus(-2 u))."""
    return 2.0 * (math.log(2.0) - u - nn.functional.softplus(-2.0 * u))


def tanh_log_prob(u: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return the log density (N,) of tanh(u) under u ~ N(mean, std), all (N, A).

    That of ``half_range * tanh(u)``, in the action's own unit, is less by the sum of log(half_range).
    """
    return normal_log_prob(u, mean, log_std) - tanh_log_slope(u).sum(-1)


def _normal(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device)
