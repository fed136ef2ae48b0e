"""Several multilayer perceptrons of one shape evaluated as one batched product, with a backward pass of their own."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn

from robolearn.policies.mlp import ACTIVATIONS

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Activation:
    """An activation and its derivative, computed from what the forward pass keeps: its output, or its input."""

    forward: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """From the gradient of the output and what was kept to the gradient of the input."""
    keeps_output: bool


_ACTIVATIONS = {
    "relu": _Activation(torch.relu_, lambda g, out: _aten.threshold_backward(g, out, 0), True),
    "tanh": _Activation(torch.tanh_, _aten.tanh_backward, True),
    "elu": _Activation(nn.functional.elu, lambda g, x: _aten.elu_backward(g, 1.0, 1.0, 1.0, False, x), False),
    "silu": _Activation(nn.functional.silu, _aten.silu_backward, False),
    "gelu": _Activation(nn.functional.gelu, lambda g, x: _aten.gelu_backward(g, x), False),
}

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Number formats of the hidden layers' products, by the name a config gives them."""


def relative_cost(precision: str, size: int = 256, rounds: int = 5) -> float:
    """Return how many times as long as in float32 a square product takes on this processor, each by its best round.

    A processor without such a format emulates it, tens of times slower than float32.
    """
    seconds = {}
    for dtype in (torch.float32, PRECISIONS[precision]):
        a, out, times = torch.ones(size, size, dtype=dtype), torch.empty(size, size, dtype=dtype), []
        for _ in range(rounds + 1):  # one to warm up
            start = perf_counter()
            torch.mm(a, a, out=out)
            times.append(perf_counter() - start)
        seconds[dtype] = min(times[1:])
    return seconds[PRECISIONS[precision]] / seconds[torch.float32]


class MLPEnsemble(nn.Module):
    """E perceptrons of one shape: (N, inputs) to (E, N, outputs).

    ``forward`` is written in plain operations and is what is exported; ``fused`` computes the same with one autograd
    node for the whole stack, which leaves out every gradient that nobody asked for. All weights and biases are one
    parameter, so that an optimiser, a slow copy and a change of format each take one operation.

    Weights and biases are uniform in +-1/sqrt(inputs), as off-policy results are published with.
    """

    flat: torch.Tensor
    """(P,) layer by layer, the weights (E, inputs, outputs) and biases (E, 1, outputs) of all networks."""

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        activation: str,
        precision: str = "float32",
    ):
        """Make the networks.

        Args:
            members: E.
            inputs: size of a row of the input.
            outputs: size of a row of the output.
            hidden: sizes of the hidden layers.
            activation: name in `robolearn.policies.mlp.ACTIVATIONS`.
            precision: name in `PRECISIONS`: format of the hidden layers in ``fused``. Parameters, the last layer
                and its gradients are float32 always.
        """
        super().__init__()
        sizes = [inputs, *hidden, outputs]
        self.members = members
        self.shapes = [(members, rows, o) for i, o in pairwise(sizes) for rows in (i, 1)]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.flat = nn.Parameter(torch.empty(sum(self.sizes)))
        with torch.no_grad():
            for weight, bias in self.layers(self.flat):
                bound = 1 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)
        self.activation = activation
        self.nonlinear = ACTIVATIONS[activation]()
        self.dtype = PRECISIONS[precision]
        self._share()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (E, N, outputs) of rows (N, inputs), or of each network's own (E, N, inputs)."""
        h = x
        layers = self.layers(self.flat)
        for weight, bias in layers[:-1]:
            h = self.nonlinear(h @ weight + bias)
        return h @ layers[-1][0] + layers[-1][1]

    def fused(self, x: torch.Tensor, frozen: bool = False, members: int | None = None) -> torch.Tensor:
        """Return the same as ``forward``.

        Args:
            x: rows (N, inputs) or (E, N, inputs).
            frozen: give the parameters no gradients, only the input.
            members: with ``frozen``, evaluate only the first so many networks.
        """
        outputs: Any = _FusedMLP.apply(x, self.flat.detach() if frozen else self.flat, self, members)
        return outputs

    def working_layers(self, members: int | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return weights and biases as ``fused`` multiplies by them, of the first so many networks."""
        if self._working is not self._flat:
            self._working.copy_(self._flat)
        return (
            self._working_layers if members is None else [(w[:members], b[:members]) for w, b in self._working_layers]
        )

    def layers(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return weights and biases in ``flat`` or a tensor (P,) like it, such as its gradient."""
        ends = list(accumulate(self.sizes))
        parts = (flat[end - size : end] for size, end in zip(self.sizes, ends, strict=True))
        views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(views[::2], views[1::2], strict=True))

    def _share(self) -> None:
        """Make the views that ``fused`` works on, once for each place that the parameters live in."""
        self._flat = self.flat.detach()
        self._working = self._flat if self.dtype == torch.float32 else self._flat.to(self.dtype)
        self._working_layers = self.layers(self._working)
        self._working_layers[-1] = self.layers(self._flat)[-1]

    def _apply(self, fn: Any, recurse: bool = True) -> "MLPEnsemble":
        super()._apply(fn, recurse)
        self._share()
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "MLPEnsemble":
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        for name, value in self.__dict__.items():
            if name not in ("_flat", "_working", "_working_layers"):
                copied.__dict__[name] = copy.deepcopy(value, memo)
        copied._share()
        return copied


class _FusedMLP(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: torch.Tensor, flat: torch.Tensor, network: MLPEnsemble, members: int | None
    ) -> torch.Tensor:
        *layers, (last, last_bias) = network.working_layers(members)
        activation = _ACTIVATIONS[network.activation]
        h = _each(x.to(network.dtype), last.shape[0])
        inputs, kept = [h], []
        for weight, bias in layers:
            z = torch.baddbmm(bias, h, weight)
            h = activation.forward(z)
            kept.append(h if activation.keeps_output else z)
            inputs.append(h)
        ctx.save_for_backward(*inputs, *kept, *(weight for weight, _ in layers), last)
        ctx.network, ctx.shared = network, x.dim() == 2
        return _products(h.float(), last).add_(last_bias)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        n = (len(saved) - 2) // 3
        inputs, kept, weights, last = saved[: n + 1], saved[n + 1 : 2 * n + 1], saved[2 * n + 1 : -1], saved[-1]
        wants_input, wants_flat = ctx.needs_input_grad[:2]
        network, flat, gradients = ctx.network, None, []
        if wants_flat:
            flat = torch.empty_like(network.flat)
            gradients = network.layers(flat)
            gradients[n][0].copy_(_products(inputs[n].float().transpose(1, 2), g))
            torch.sum(g, 1, keepdim=True, out=gradients[n][1])
        g = _products(g, last.transpose(1, 2)).to(network.dtype)
        backward = _ACTIVATIONS[network.activation].backward
        for i in range(n - 1, -1, -1):
            g = backward(g, kept[i])
            if wants_flat:
                gradients[i][0].copy_(torch.bmm(inputs[i].transpose(1, 2), g))
                torch.sum(g, 1, keepdim=True, dtype=torch.float32, out=gradients[i][1])
            if i or wants_input:
                g = torch.bmm(g, weights[i].transpose(1, 2))
        x = None
        if wants_input:
            x = g.float().sum(0) if ctx.shared else g.float()
        return x, flat, None, None


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, (E, n, k) and (E, k, m), one by one: MKL's batched product of one column is 20 times slower."""
    out = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=a.dtype, device=a.device)
    for i in range(a.shape[0]):
        torch.mm(a[i], b[i], out=out[i])
    return out


def _each(x: torch.Tensor, members: int) -> torch.Tensor:
    return x if x.dim() == 3 else x.expand(members, *x.shape)
