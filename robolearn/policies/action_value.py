"""Networks that value an action: an ensemble of perceptrons, or of networks that a network makes for each state."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from robolearn.policies.ensemble import MLPEnsemble
from robolearn.policies.normalizer import Normalizer


class ActionValue(nn.Module):
    """E networks from raw critic observations (N, Dc) and actions (N, A) of the unit box to outputs (E, N, K)."""

    network: Any
    """An `MLPEnsemble` or `HyperEnsemble` on (N, Dc + A)."""

    def __init__(self, observation_size: int, network: nn.Module, normalize: bool):
        """Wrap a network; its first Dc inputs are the observation."""
        super().__init__()
        self.normalizer = Normalizer(observation_size) if normalize else None
        self.network = network

    def forward(
        self, observation: torch.Tensor, action: torch.Tensor, frozen: bool = False, members: int | None = None
    ) -> torch.Tensor:
        """Return the outputs (E, N, K).

        Args:
            observation: (N, Dc), raw.
            action: (N, A) in the unit box.
            frozen: give gradients to the action only, not to the parameters.
            members: evaluate only the first so many networks.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        return self.network.fused(torch.cat((observation, action), 1), frozen, members)


class HyperEnsemble(nn.Module):
    """E networks on the action whose weights another network makes from the state (Sarafian et al. 2021, HypeRL).

    The state passes through residual blocks of growing width; linear heads make from it the weights of a network with
    one hidden layer. The heads begin small, so that the values begin near zero.
    """

    enter: Any
    """An `MLPEnsemble` of one layer before each residual block."""
    blocks: Any
    """An `MLPEnsemble` for each residual block."""
    heads: Any
    """An `MLPEnsemble` of one layer for each tensor of the network on the action."""

    def __init__(
        self,
        members: int,
        observation_size: int,
        actions: int,
        outputs: int,
        hidden: int = 64,
        widths: Sequence[int] = (64, 128, 256),
    ):
        """Make the networks.

        Args:
            members: E.
            observation_size: Dc, the first columns of the input.
            actions: A, the others.
            outputs: K.
            hidden: size of the hidden layer of the network on the action.
            widths: sizes of the residual blocks.
        """
        super().__init__()
        self.observation_size, self.shapes = observation_size, ((actions, hidden), (1, hidden), (hidden, outputs))
        self.shapes = (*self.shapes, (1, outputs))
        sizes = [observation_size, *widths]
        self.enter, self.blocks = nn.ModuleList(), nn.ModuleList()
        for i, o in pairwise(sizes):
            self.enter.append(MLPEnsemble(members, i, o, (), "relu"))
            self.blocks.append(MLPEnsemble(members, o, o, (o,), "relu"))
        self.heads = nn.ModuleList(MLPEnsemble(members, sizes[-1], a * b, (), "relu") for a, b in self.shapes)
        with torch.no_grad():
            for parameter in self.heads.parameters():
                parameter.mul_(0.1)

    def fused(self, x: torch.Tensor, frozen: bool = False, members: int | None = None) -> torch.Tensor:
        """Return the outputs (E, N, K) of rows (N, Dc + A), as `MLPEnsemble.fused`."""
        state, action = x[:, : self.observation_size], x[:, self.observation_size :]
        arguments = (frozen, members)
        h = state.detach()  # only the action's gradient is ever asked for
        for enter, block in zip(self.enter, self.blocks, strict=True):
            h = enter.fused(h, *arguments)
            h = h + block.fused(torch.relu(h), *arguments)
        h = torch.relu(h)
        w1, b1, w2, b2 = (
            head.fused(h, *arguments).unflatten(-1, shape) for head, shape in zip(self.heads, self.shapes, strict=True)
        )
        hidden = torch.relu(action[:, None] @ w1 + b1)  # (E, N, 1, hidden)
        return (hidden @ w2 + b2).squeeze(-2)
