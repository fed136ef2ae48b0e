"""The config of the off-policy algorithms, and the parts that its names stand for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.bonuses import Bonus, NearOld, NoBonus, Temperature
from robolearn.algorithms.critics import CategoricalCritic, Critic, GaussianCritic, ScalarCritic
from robolearn.algorithms.value_targets import AverageReward, Discounted, ValueTarget
from robolearn.buffers.hindsight import HindsightReplay, goal_of
from robolearn.buffers.replay import Replay
from robolearn.policies.action_value import HyperEnsemble
from robolearn.policies.ensemble import PRECISIONS, MLPEnsemble
from robolearn.policies.mlp import ACTIVATIONS
from robolearn.policies.squashed import DeterministicPolicy, MixturePolicy, SquashedPolicy, TanhGaussianPolicy
from sim.errors import UserError, unknown
from tasks.vector_env import VectorEnv


@dataclass(kw_only=True)
class OffPolicyConfig:
    """Hyper-parameters; the defaults are those of soft actor-critic."""

    head: str = "tanh_gaussian"
    """Policy: deterministic, tanh_gaussian or mixture."""
    critic: str = "scalar"
    """What the critic predicts of the return: scalar, gaussian or categorical."""
    critic_network: str = "mlp"
    """Its network: mlp, or hyper for one whose weights a network makes from the state."""
    target: str = "min"
    """What it is trained towards: min for the least discounted value of the critics, average for average reward."""
    bonus: str = "temperature"
    """What the policy is paid besides: none, temperature for entropy, kl for nearness to an earlier policy."""
    policy_value: str = "min"
    """Which of the critics' values the policy climbs: min, mean or first."""
    critics: int = 2
    """Number of critics."""
    target_policy: bool = False
    """Take the next action from a slow copy of the policy."""
    policy_delay: int = 1
    """Critic steps for each step of the policy and of the slow copies."""
    updates_per_step: int = 1
    """Critic steps after each step of all worlds."""
    batch_size: int = 256
    """Transitions of one gradient step."""
    capacity: int = 1_000_000
    """Transitions kept for replay, over all worlds."""
    warmup: int = 10_000
    """Environment steps with random actions, over all worlds, before the first gradient step."""
    iteration_steps: int = 1000
    """Steps of each world between two rows of metrics."""
    n_steps: int = 1
    """Most steps of reward in one target."""
    replay: str = "uniform"
    """How batches are drawn: uniform, or her for hindsight experience replay in tasks with a goal."""
    hindsight: float = 0.8
    """Share of a batch that is asked for a goal its episode achieved later on, under the replay her."""
    gamma: float = 0.99
    """Discount factor."""
    polyak: float = 0.005
    """Share of the learned networks that the slow copies take on at each of their steps."""
    learning_rate: float = 3e-4
    """Learning rate of policy and critic."""
    alpha_learning_rate: float = 3e-4
    """Learning rate of the temperature."""
    average_learning_rate: float = 3e-3
    """Learning rate of the average reward."""
    initial_alpha: float = 1.0
    """Initial temperature."""
    target_entropy: float = -1.0
    """Entropy that the temperature holds the policy to, in nats for each action scaled to the unit box."""
    kl_coefficient: float = 1.0
    """Weight of the log density in the policy's cost under the bonus kl."""
    entropy_coefficient: float = 0.2
    """Weight of the entropy in it and in the value."""
    kl_period: int = 1000
    """Steps of the policy between renewals of the earlier one."""
    exploration_noise: tuple[float, float] = (0.1, 0.1)
    """Smallest and largest standard deviation that a deterministic policy explores with, spread over the worlds."""
    target_noise: float = 0.2
    """Standard deviation of the noise on a deterministic policy's next action."""
    target_noise_clip: float = 0.5
    """Where that noise is cut off."""
    log_std_range: tuple[float, float] = (-20.0, 2.0)
    """Limits of the log standard deviation of a stochastic policy."""
    experts: int = 4
    """Components of a mixture policy."""
    value_range: tuple[float, float] = (-200.0, 200.0)
    """Smallest and largest return of a categorical critic."""
    atoms: int = 101
    """Number of values of a categorical critic."""
    normalize_observation: bool = False
    """Normalise observations by their running statistics."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of policy and critics."""
    activation: str = "relu"
    """Activation between them."""
    precision: str = "float32"
    """Format of the hidden layers' products in gradient steps: float32, or bfloat16, which is faster where the
    processor has it. Parameters, targets and what is exported are float32 always."""

    def __post_init__(self) -> None:
        for name, table in _CHOICES.items():
            if getattr(self, name) not in table:
                raise unknown(name, getattr(self, name), table)
        for name in ("critics", "policy_delay", "updates_per_step", "batch_size", "capacity", "iteration_steps",
                     "n_steps", "experts", "kl_period"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "alpha_learning_rate", "average_learning_rate", "initial_alpha", "polyak"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("warmup", "target_noise", "target_noise_clip", "kl_coefficient", "entropy_coefficient"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative, not {getattr(self, name)}")
        for name in ("gamma", "polyak"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        for name in ("log_std_range", "value_range"):
            low, high = getattr(self, name)
            if not low < high:
                raise UserError(f"{name} must rise, not go from {low} to {high}")
        if not 0 < self.hindsight <= 1:
            raise UserError(f"hindsight must be above 0 and at most 1, not {self.hindsight}")
        if self.replay == "her" and self.n_steps > 1:
            raise UserError(f"replay her relabels single steps and n_steps is {self.n_steps}; set it to 1")
        if not 0 <= self.exploration_noise[0] <= self.exploration_noise[1]:
            raise UserError(f"exploration_noise must rise from 0 or above, not be {self.exploration_noise}")
        if self.atoms < 2:
            raise UserError(f"atoms must be at least 2, not {self.atoms}")
        if self.batch_size > self.capacity:
            raise UserError(f"batch_size {self.batch_size} is more than the replay's capacity {self.capacity}")
        if self.head == "deterministic" and self.bonus != "none":
            raise UserError(f"bonus {self.bonus} needs a head with a density: tanh_gaussian or mixture")


def make_policy(c: OffPolicyConfig, size: int, low: torch.Tensor, high: torch.Tensor) -> SquashedPolicy:
    """Return the policy for observations of a size and actions between low and high (A,)."""
    return _HEADS[c.head](c, size, low, high)


def make_critic(c: OffPolicyConfig) -> Critic:
    """Return what reads the outputs of the critics' networks."""
    return _CRITICS[c.critic](c)


def make_network(c: OffPolicyConfig, size: int, actions: int, outputs: int) -> nn.Module:
    """Return the critics' networks for observations of a size."""
    return _NETWORKS[c.critic_network](c, size, actions, outputs)


def make_bonus(c: OffPolicyConfig, policy: SquashedPolicy, actions: int) -> Bonus:
    """Return what the policy is paid besides."""
    return _BONUSES[c.bonus](c, policy, actions)


def make_target(c: OffPolicyConfig) -> ValueTarget:
    """Return what the critics are trained towards."""
    return _TARGETS[c.target](c)


def make_replay(c: OffPolicyConfig, env: VectorEnv, sizes: Mapping[str, int], gamma: float, seed: int) -> Replay:
    """Return the memory for rows of these sizes, whose batches are discounted by gamma and drawn with a seed.

    Raises:
        UserError: it has no room for the worlds, or the task no goal for hindsight.
    """
    return _REPLAYS[c.replay](c, env, sizes, gamma, seed)


def policy_value(c: OffPolicyConfig, values: torch.Tensor) -> torch.Tensor:
    """Return the value (N,) that the policy climbs, of the critics' mean values (E, N)."""
    return _POLICY_VALUES[c.policy_value](values)


def _network(c: OffPolicyConfig) -> dict[str, Any]:
    return {"hidden": c.hidden, "activation": c.activation, "precision": c.precision,
            "normalize": c.normalize_observation}  # fmt: skip


_HEADS: dict[str, Any] = {
    "deterministic": lambda c, size, low, high: DeterministicPolicy(
        size, low, high, c.exploration_noise, c.target_noise, c.target_noise_clip, **_network(c)
    ),
    "tanh_gaussian": lambda c, size, low, high: TanhGaussianPolicy(size, low, high, c.log_std_range, **_network(c)),
    "mixture": lambda c, size, low, high: MixturePolicy(size, low, high, c.experts, c.log_std_range, **_network(c)),
}
_CRITICS: dict[str, Any] = {
    "scalar": lambda c: ScalarCritic(),
    "gaussian": lambda c: GaussianCritic(c.critics, c.polyak),
    "categorical": lambda c: CategoricalCritic(c.value_range[0], c.value_range[1], c.atoms),
}
_NETWORKS: dict[str, Any] = {
    "mlp": lambda c, size, actions, outputs: MLPEnsemble(
        c.critics, size + actions, outputs, c.hidden, c.activation, c.precision
    ),
    "hyper": lambda c, size, actions, outputs: HyperEnsemble(c.critics, size, actions, outputs),
}
_BONUSES: dict[str, Any] = {
    "none": lambda c, policy, actions: NoBonus(),
    "temperature": lambda c, policy, actions: Temperature(c.initial_alpha, c.target_entropy * actions),
    "kl": lambda c, policy, actions: NearOld(policy, c.kl_coefficient, c.entropy_coefficient, c.kl_period),
}
_TARGETS: dict[str, Any] = {"min": lambda c: Discounted(c.gamma), "average": lambda c: AverageReward()}
_REPLAYS: dict[str, Any] = {
    "uniform": lambda c, env, sizes, gamma, seed: Replay(
        c.capacity, env.num_envs, sizes, env.device, seed, n_steps=c.n_steps, gamma=gamma
    ),
    "her": lambda c, env, sizes, gamma, seed: HindsightReplay(
        c.capacity, env.num_envs, sizes, env.device, goal_of(env), c.hindsight, seed, gamma
    ),
}
_POLICY_VALUES: dict[str, Any] = {
    "min": lambda values: values.min(0).values,
    "mean": lambda values: values.mean(0),
    "first": lambda values: values[0],
}
_CHOICES: dict[str, dict[str, Any]] = {
    "head": _HEADS,
    "critic": _CRITICS,
    "critic_network": _NETWORKS,
    "target": _TARGETS,
    "bonus": _BONUSES,
    "replay": _REPLAYS,
    "policy_value": _POLICY_VALUES,
    "activation": ACTIVATIONS,
    "precision": PRECISIONS,
}
