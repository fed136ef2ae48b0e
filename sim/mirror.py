"""Reflections of named quantities in a robot's left-right plane."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sim.errors import UserError

_SIDES = (("left", "right"), ("FL", "FR"), ("RL", "RR"), ("L_", "R_"))
"""How the names of a part and of its mirror image differ."""


@dataclass(frozen=True)
class Mirror:
    """A reflection of vectors (N, D): entry i of the image is ``sign[i] * vector[index[i]]``."""

    index: torch.Tensor
    """(D,) int64."""
    sign: torch.Tensor
    """(D,) float32, +1 or -1."""

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """Mirror vectors (N, D)."""
        return vector[:, self.index] * self.sign

    @staticmethod
    def signs(*signs: float) -> "Mirror":
        """Return the mirror that keeps every entry in its place and multiplies it by its sign."""
        return Mirror(torch.arange(len(signs)), torch.tensor(signs, dtype=torch.float32))

    @staticmethod
    def join(parts: "dict[str, Mirror]") -> "Mirror":
        """Return the mirror of the concatenation of terms, in their order."""
        starts, start = [], 0
        for part in parts.values():
            starts.append(start)
            start += len(part.sign)
        index = torch.cat([part.index + s for part, s in zip(parts.values(), starts, strict=True)])
        return Mirror(index, torch.cat([part.sign for part in parts.values()]))


def partners(names: Sequence[str]) -> list[int]:
    """Return for each name the place of its mirror image among them; a name on no side is its own.

    Raises:
        UserError: a name on one side has no image on the other.
    """
    places = []
    for name in names:
        image = _image(name)
        if image not in names:
            raise UserError(f"{name} has no mirror image {image}: the robot has no left-right symmetry by name")
        places.append(list(names).index(image))
    return places


def _image(name: str) -> str:
    for left, right in _SIDES:
        if left in name:
            return name.replace(left, right)
        if right in name:
            return name.replace(right, left)
    return name
