"""Action value gradient: a soft actor-critic that learns from each step once, as it happens (Vasan et al. 2024).

No replay, no batch, no slow copies. What keeps it stable is that everything has unit size: observations are
normalised by running statistics, the last hidden layer to unit length, and temporal-difference errors by the running
spread of the return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.episodes import EpisodeMeans
from robolearn.algorithms.offpolicy import action_bounds, drawn_seed
from robolearn.policies.normalizer import Normalizer
from robolearn.policies.squashed import Sample, tanh_log_prob
from sim.errors import UserError
from tasks.vector_env import VectorEnv

_PARTS = ("policy", "value", "spread", "optimizer")


@dataclass(kw_only=True)
class AVGConfig:
    """Hyper-parameters; the defaults are those published for Ant, HalfCheetah and Humanoid."""

    policy_learning_rate: float = 0.0063
    """Learning rate of the policy."""
    value_learning_rate: float = 0.0087
    """Learning rate of the critic."""
    alpha: float = 0.07
    """Temperature: weight of the entropy."""
    gamma: float = 0.99
    """Discount factor."""
    log_std_range: tuple[float, float] = (-20.0, 2.0)
    """Limits of the log standard deviation of the policy."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of policy and critic; the last is normalised to unit length."""
    iteration_steps: int = 1000
    """Steps of each world between two rows of metrics."""

    def __post_init__(self) -> None:
        for name in ("policy_learning_rate", "value_learning_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.alpha >= 0:
            raise UserError(f"alpha must not be negative, not {self.alpha}")
        if not 0 <= self.gamma <= 1:
            raise UserError(f"gamma must be between 0 and 1, not {self.gamma}")
        if not self.log_std_range[0] < self.log_std_range[1]:
            raise UserError(f"log_std_range must rise, not go from {self.log_std_range[0]} to {self.log_std_range[1]}")
        if not self.hidden or min(self.hidden) < 1:
            raise UserError(f"hidden needs a layer of at least one unit to normalise, not {self.hidden}")
        if self.iteration_steps < 1:
            raise UserError(f"iteration_steps must be at least 1, not {self.iteration_steps}")


class UnitFeatures(nn.Module):
    """A perceptron whose last hidden layer has unit length (Bjorck et al. 2022): (N, inputs) to (N, outputs)."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int]):
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in pairwise((inputs, *hidden)):
            layers += [_orthogonal(i, o), nn.LeakyReLU()]
        self.body, self.head = nn.Sequential(*layers), _orthogonal(hidden[-1], outputs)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last hidden layer (N, F), each row of length 1."""
        return nn.functional.normalize(self.body(x), dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class UnitFeaturePolicy(nn.Module):
    """A normal distribution of u on unit features, for actions ``centre + half_range * tanh(u)``."""

    centre: torch.Tensor
    """(A,) middle of the action range, in the action's unit."""
    half_range: torch.Tensor
    """(A,) half of it."""

    def __init__(
        self,
        observation_size: int,
        low: torch.Tensor,
        high: torch.Tensor,
        hidden: Sequence[int],
        log_std_range: tuple[float, float],
    ):
        """Make the policy for actions between low and high, both (A,); the log std of u is clamped to a range."""
        super().__init__()
        self.normalizer = Normalizer(observation_size)
        self.network = UnitFeatures(observation_size, 2 * len(low), hidden)
        self.log_std_range = log_std_range
        self.register_buffer("centre", (low + high) / 2)
        self.register_buffer("half_range", (high - low) / 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the deterministic action (N, A) for raw observations (N, D): what is exported."""
        output = self.network(self.normalizer(observation))
        return self.to_env(torch.tanh(output[:, : len(self.centre)]))  # the exporter loses the size of a chunk

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        """Return an action (N, A) of the unit box in the action's unit."""
        return self.centre + self.half_range * action

    def sample(self, observation: torch.Tensor, generator: torch.Generator | None) -> Sample:
        """Return reparameterised actions for raw observations (N, D)."""
        mean, log_std = self.network(self.normalizer(observation)).chunk(2, -1)
        log_std = log_std.clamp(*self.log_std_range)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        u = mean + log_std.exp() * noise
        return Sample(torch.tanh(u), u, tanh_log_prob(u, mean, log_std))

    @torch.no_grad()
    def act(
        self, observation: torch.Tensor, deterministic: bool = False, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return actions (N, A) in the action's unit for raw observations (N, D)."""
        return self(observation) if deterministic else self.to_env(self.sample(observation, generator).action)


class UnitFeatureValue(nn.Module):
    """The value (N,) of an action (N, A) of the unit box at raw critic observations (N, Dc)."""

    def __init__(self, observation_size: int, actions: int, hidden: Sequence[int]):
        super().__init__()
        self.normalizer = Normalizer(observation_size)
        self.network = UnitFeatures(observation_size + actions, 1, hidden)

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.network(torch.cat((self.normalizer(observation), action), -1)).squeeze(-1)


class ReturnSpread(nn.Module):
    """The size of temporal-difference errors, from rewards, discounts and returns (Schaul et al. 2021, eq. 4).

    ``sigma^2 = Var[R] + Var[gamma] E[G^2]``: R and gamma are of every step, gamma being 0 where an episode terminates,
    and G is the sum of an episode's rewards.
    """

    ret: torch.Tensor
    """(N,) float64 sum of the rewards so far in the running episode of each world."""

    def __init__(self, num_envs: int, gamma: float, floor: float = 0.01):
        """Begin with nothing seen; sigma is at least ``floor``."""
        super().__init__()
        self.gamma, self.floor = gamma, floor
        self.step_statistics = Normalizer(2)
        self.squares = Normalizer(1)
        self.register_buffer("ret", torch.zeros(num_envs, dtype=torch.float64))

    @torch.no_grad()
    def update(self, reward: torch.Tensor, terminated: torch.Tensor, ended: torch.Tensor) -> None:
        """Take in the rewards of a step, and where episodes terminated and where they ended at all, each (N,)."""
        discount = self.gamma * (~terminated).double()
        self.step_statistics.update(torch.stack((reward.double(), discount), 1))
        self.ret += reward
        if bool(ended.any()):
            self.squares.update(self.ret[ended].square()[:, None])
            self.ret[ended] = 0.0

    def sigma(self) -> torch.Tensor:
        """Return sigma () float32; 1 before the second step."""
        reward, discount = self.step_statistics.var
        sigma = (reward + discount * self.squares.mean[0]).sqrt().clamp(min=self.floor)
        return torch.where(self.step_statistics.count > 1, sigma, 1.0).float()


def policy_loss(value: torch.Tensor, log_prob: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return the loss (N,) of sampled actions: alpha log pi(a) - Q(s, a) (Vasan et al. 2024, eq. 5)."""
    return alpha * log_prob - value


def value_loss(
    value: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor, following: torch.Tensor, sigma: torch.Tensor
) -> torch.Tensor:
    """Return the square (N,) of the temporal-difference error over its size.

    Args:
        value: (N,) of the actions taken.
        reward: (N,)
        discount: (N,) 0 where the step terminated.
        following: (N,) soft value of the next observations, without gradient.
        sigma: () size of the errors.
    """
    return ((reward + discount * following - value) / sigma).square()


class AVG:
    """Steps the worlds, and takes one step of policy and critic on each step of theirs."""

    Config = AVGConfig

    def __init__(self, env: VectorEnv, config: AVGConfig, seed: int = 0):
        """Make the networks.

        Raises:
            UserError: the action space is unbounded or degenerate.
        """
        self.config, c = config, config
        self.device, self.num_envs = env.device, env.num_envs
        torch.manual_seed(seed)
        low, high = action_bounds(env)
        sizes = {group: sum(env.observation_terms[group].values()) for group in ("policy", "critic")}
        self.policy = UnitFeaturePolicy(sizes["policy"], low, high, c.hidden, c.log_std_range).to(self.device)
        self.value = UnitFeatureValue(sizes["critic"], len(low), c.hidden).to(self.device)
        self.spread = ReturnSpread(self.num_envs, c.gamma).to(self.device)
        groups = ((self.policy, c.policy_learning_rate), (self.value, c.value_learning_rate))
        parameters = [{"params": list(module.parameters()), "lr": rate} for module, rate in groups]
        # Without momentum: the gradient of one sample says little about that of the next.
        self.optimizer = torch.optim.Adam(parameters, betas=(0.0, 0.999), fused=True)
        self.generator = torch.Generator(self.device).manual_seed(drawn_seed())
        self.started = False
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one `collect`."""
        return self.config.iteration_steps * self.num_envs

    def collect(self, env: VectorEnv) -> dict[str, float]:
        """Step the worlds, learn from every step, and return means over the episodes that ended."""
        if not self.started:
            env.reset()
            self.started = True
        means = EpisodeMeans()
        for _ in range(self.config.iteration_steps):
            means.add(self._step(env))
        return means.result()

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Return the means of what the steps in `collect` learned with; the learning is done there."""
        del progress
        values = torch.stack(list(self._sums.values())).tolist()  # the one wait for the device
        metrics = {name: value / self.config.iteration_steps for name, value in zip(self._sums, values, strict=True)}
        self._sums = {}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        return {**parts, "generator": self.generator.get_state(), "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())
        self.started = state["started"]

    def _step(self, env: VectorEnv) -> dict[str, float]:
        """Step every world once, learn from it, and return what the environment logs of it."""
        c, obs = self.config, env.obs_buf
        self.policy.normalizer.update(obs["policy"])
        self.value.normalizer.update(obs["critic"])
        # The action that is taken is the one the policy's gradient passes through.
        sample = self.policy.sample(obs["policy"], self.generator)
        _, reward, terminated, truncated, extras = env.step(self.policy.to_env(sample.action.detach()))
        final, log_prob = extras["final_obs"], sample.log_prob.detach()
        self.spread.update(reward - c.alpha * log_prob, terminated, terminated | truncated)
        with torch.no_grad():
            then = self.policy.sample(final["policy"], self.generator)
            following = self.value(final["critic"], then.action) - c.alpha * then.log_prob
        value = self.value(obs["critic"], sample.action.detach())
        critic = value_loss(value, reward, c.gamma * (~terminated).float(), following, self.spread.sigma()).mean()
        # Both losses are of the networks as they were when the step was taken.
        policy = policy_loss(self.value(obs["critic"], sample.action), sample.log_prob, c.alpha).mean()
        self.optimizer.zero_grad()
        policy.backward(inputs=list(self.policy.parameters()))
        critic.backward()
        self.optimizer.step()
        self._note({
            "loss/policy": policy, "loss/value": critic, "policy/entropy": -log_prob.mean(),
            "value/mean": value.mean(), "value/sigma": self.spread.sigma(),
        })  # fmt: skip
        return extras["log"]

    def _note(self, values: dict[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value.detach()


def _orthogonal(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight)
        layer.bias.zero_()
    return layer
