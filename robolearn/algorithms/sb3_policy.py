"""Stable-Baselines3's actors as policies of ours, and back: the same weights, so the same deterministic actions."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from robolearn.policies.gaussian import GaussianPolicy
from robolearn.policies.normalizer import Normalizer
from robolearn.policies.squashed import DeterministicPolicy, TanhGaussianPolicy

EPSILON = 1e-8
"""What VecNormalize adds to a variance."""

Parameters = Mapping[str, torch.Tensor]
"""The ``state_dict`` of an SB3 policy, whose tensors are its parameters themselves."""
Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""The weight (out, in) and bias (out,) of each linear layer, in order."""


@dataclass(frozen=True)
class Shape:
    """Sizes of an actor's network."""

    observation: int
    hidden: tuple[int, ...]
    action: int


class Actor(ABC):
    """Where the weights of one kind of SB3 actor are, and which policy of ours acts as it does; made for a config."""

    hidden: str
    """Name of the sequence of hidden layers."""
    outputs: tuple[str, ...] = ()
    """Names of the layers after it whose outputs side by side are the policy's, the action's first; none where the
    last layer of the sequence is that layer."""
    others: tuple[str, ...] = ()
    """Names of the actor's other parameters."""
    rest: tuple[str, ...]
    """How the names of parameters begin that are not the actor's."""

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def make(self, size: int, low: torch.Tensor, high: torch.Tensor) -> Any:
        """Return our policy for observations of a size and actions between low and high (A,)."""

    @abstractmethod
    def own_layers(self, policy: Any) -> Layers:
        """Return our policy's layers, as views."""

    def take(self, policy: Any, parameters: Parameters) -> None:
        """Give our policy the weights of an SB3 policy."""
        with torch.no_grad():
            for (weight, bias), names in zip(self.own_layers(policy), self._layers(parameters), strict=True):
                weight.copy_(torch.cat([parameters[f"{name}.weight"] for name in names]))
                bias.copy_(torch.cat([parameters[f"{name}.bias"] for name in names]))

    def give(self, policy: Any, parameters: Parameters) -> None:
        """Give an SB3 policy the weights of ours."""
        with torch.no_grad():
            for (weight, bias), names in zip(self.own_layers(policy), self._layers(parameters), strict=True):
                sizes = [len(parameters[f"{name}.bias"]) for name in names]
                for name, w, b in zip(names, weight.split(sizes), bias.split(sizes), strict=True):
                    parameters[f"{name}.weight"].copy_(w)
                    parameters[f"{name}.bias"].copy_(b)

    @classmethod
    def shape(cls, parameters: Parameters) -> Shape:
        """Return the sizes of the network.

        Raises:
            ValueError: it is no stack of linear layers with an activation after each; says what is wrong.
        """
        layers = cls._layers(parameters)
        names = [name for layer in layers for name in layer]
        known = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")} | set(cls.others)
        if foreign := [n for n in parameters if n not in known and not n.startswith(cls.rest)]:
            raise ValueError(f"it holds {foreign[0]}")
        if absent := sorted(known - parameters.keys()) or ([] if layers else [f"{cls.hidden}.0.weight"]):
            raise ValueError(f"it lacks {absent[0]}")
        in_sequence = [name for name in names if name.startswith(f"{cls.hidden}.")]
        if in_sequence != [f"{cls.hidden}.{2 * i}" for i in range(len(in_sequence))]:
            raise ValueError(f"its linear layers are {', '.join(in_sequence)}")
        weights = [parameters[f"{layer[0]}.weight"] for layer in layers]
        if any(w.dim() != 2 for w in weights) or any(len(a) != b.shape[1] for a, b in pairwise(weights)):
            raise ValueError(f"its weights have shapes {', '.join(str(tuple(w.shape)) for w in weights)}")
        return Shape(weights[0].shape[1], tuple(len(w) for w in weights[:-1]), len(weights[-1]))

    @classmethod
    def _layers(cls, names: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the names of the modules that each layer is made of."""
        pattern = re.compile(rf"{re.escape(cls.hidden)}\.(\d+)\.weight")
        indices = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
        sequence: list[tuple[str, ...]] = [(f"{cls.hidden}.{i}",) for i in indices]
        return [*sequence, cls.outputs] if cls.outputs else sequence


class SquashedActor(Actor):
    """An actor that ends in a tanh, scaled to the action's range."""

    def own_layers(self, policy: Any) -> Layers:
        return [(weight[0].T, bias[0, 0]) for weight, bias in policy.network.layers(policy.network.flat)]


class SacActor(SquashedActor):
    """That of SAC."""

    hidden = "actor.latent_pi"
    outputs = ("actor.mu", "actor.log_std")
    rest = ("critic.", "critic_target.")

    def make(self, size: int, low: torch.Tensor, high: torch.Tensor) -> Any:
        return _normalizing(TanhGaussianPolicy(size, low, high, **_network(self.config)), self.config)


class Td3Actor(SquashedActor):
    """That of TD3 and DDPG."""

    hidden = "actor.mu"
    rest = ("actor_target.", "critic.", "critic_target.")

    def make(self, size: int, low: torch.Tensor, high: torch.Tensor) -> Any:
        return _normalizing(DeterministicPolicy(size, low, high, **_network(self.config)), self.config)

    def give(self, policy: Any, parameters: Parameters) -> None:
        super().give(policy, parameters)
        with torch.no_grad():
            for name, values in parameters.items():
                if name.startswith("actor_target."):
                    values.copy_(parameters[name.replace("actor_target.", "actor.", 1)])


class GaussianActor(Actor):
    """That of PPO and A2C: a normal distribution in units of half the action's range, as ours is, or in its own."""

    hidden = "mlp_extractor.policy_net"
    outputs = ("action_net",)
    others = ("log_std",)
    rest = ("mlp_extractor.value_net.", "value_net.")

    def make(self, size: int, low: torch.Tensor, high: torch.Tensor) -> Any:
        policy = GaussianPolicy(size, low, high, self.config.hidden, self.config.activation, initial_std=1.0)
        return _normalizing(policy, self.config)

    def own_layers(self, policy: Any) -> Layers:
        return [(layer.weight, layer.bias) for layer in policy.network if isinstance(layer, nn.Linear)]

    def take(self, policy: Any, parameters: Parameters) -> None:
        super().take(policy, parameters)
        with torch.no_grad():
            policy.log_std.copy_(parameters["log_std"])
            if not self.config.normalize_action:
                weight, bias = self.own_layers(policy)[-1]
                weight.div_(policy.scale[:, None])
                bias.sub_(policy.centre).div_(policy.scale)
                policy.log_std.sub_(policy.scale.log())

    def give(self, policy: Any, parameters: Parameters) -> None:
        super().give(policy, parameters)
        with torch.no_grad():
            parameters["log_std"].copy_(policy.log_std)
            if not self.config.normalize_action:
                parameters["action_net.weight"].mul_(policy.scale[:, None])
                parameters["action_net.bias"].mul_(policy.scale).add_(policy.centre)
                parameters["log_std"].add_(policy.scale.log())


def set_statistics(normalizer: Normalizer, mean: Any, var: Any, count: float, epsilon: float = EPSILON) -> None:
    """Let a normaliser do as VecNormalize does with a running mean and variance (D,) over ``count`` rows."""
    with torch.no_grad():
        normalizer.mean.copy_(torch.as_tensor(mean, dtype=torch.float64))
        normalizer.var.copy_(torch.as_tensor(var, dtype=torch.float64))
        normalizer.count.fill_(float(count))
        normalizer.shift.copy_(normalizer.mean)
        normalizer.scale.copy_((normalizer.var + epsilon).rsqrt())


def _network(config: Any) -> dict[str, Any]:
    return {"hidden": config.hidden, "activation": config.activation, "normalize": config.normalize_observation}


def _normalizing(policy: Any, config: Any) -> Any:
    """Return a policy that cuts observations off where VecNormalize does: nowhere, if nothing is normalised."""
    if policy.normalizer is not None:
        policy.normalizer.limit = config.clip_observation if config.normalize_observation else math.inf
    return policy
