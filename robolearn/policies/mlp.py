"""Multilayer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
"""Activation modules by the name a config gives them."""


class MLP(nn.Sequential):
    """Linear layers with an activation between them: (N, inputs) to (N, outputs).

    Weights are orthogonal with gain sqrt(2), biases zero; the last layer's gain is ``output_gain`` (Andrychowicz et
    al. 2021, "What matters in on-policy reinforcement learning": a last policy layer of gain 0.01 is worth most).
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int], activation: str = "elu", output_gain: float = 1.0
    ):
        sizes = [inputs, *hidden]
        layers: list[nn.Module] = []
        for i, o in pairwise(sizes):
            layers += [_linear(i, o, 2.0**0.5), ACTIVATIONS[activation]()]
        layers.append(_linear(sizes[-1], outputs, output_gain))
        super().__init__(*layers)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight, gain)
        layer.bias.zero_()
    return layer
