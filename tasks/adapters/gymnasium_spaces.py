"""Gymnasium's spaces as named terms of one vector, and as bounds of one action."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from sim.errors import UserError
from tasks.vector_env import EnvironmentFailed

OBSERVATION = "observation"
"""The term that stands first, and the only one of an observation that is no Dict."""


class Flattener:
    """Writes observations of a space as rows of numbers, one term after the other.

    The entries of a Dict are the terms, ``observation`` first, then in the space's order; what is in an entry is
    flattened as Gymnasium does it. Any other space is one term, ``observation``.
    """

    def __init__(self, space: spaces.Space, name: str):
        """Look at a space.

        Args:
            space: of one world's observation.
            name: of the environment, for the message of an error.

        Raises:
            UserError: an observation is an image, or cannot be written as so many numbers.
        """
        self._name = name
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
        if OBSERVATION in parts:
            parts = {OBSERVATION: parts.pop(OBSERVATION), **parts}
        self._parts: list[tuple[str, spaces.Space, slice]] = []
        self.terms: dict[str, int] = {}
        """The size of each term, in order."""
        self.columns: dict[str, slice] = {}
        """Where each term is."""
        self.boxes = {key for key, part in parts.items() if isinstance(part, spaces.Box)}
        """The terms that are plain arrays."""
        start = 0
        for key, part in parts.items():
            size = self._size(key, part)
            if size == 0:
                continue
            self.terms[key], self.columns[key] = size, slice(start, start + size)
            self._parts.append((key, part, self.columns[key]))
            start += size
        self.size = start
        """Numbers in a row, D."""
        if not start:
            raise UserError(f"{name} has an empty observation: {space}")

    def write(self, observation: Any, row: np.ndarray) -> None:
        """Write the observation of one world into ``row`` (D,).

        Raises:
            EnvironmentFailed: it has another shape than its space says.
        """
        for key, part, columns in self._parts:
            value = self._entry(observation, key)
            if isinstance(part, spaces.Box):
                array = np.asarray(value)
                if array.shape != part.shape:
                    raise EnvironmentFailed(f"{self._name} returned {key} of shape {array.shape}; its observation "
                                            f"space says {part.shape}")  # fmt: skip
                row[columns] = array.reshape(-1)
            else:
                row[columns] = spaces.flatten(part, value)

    def write_batch(self, observation: Any, batched: spaces.Space, rows: np.ndarray) -> None:
        """Write what a vector environment returned, of its batched space, into ``rows`` (N, D).

        Raises:
            EnvironmentFailed: it has another shape than its space says.
        """
        if all(isinstance(part, spaces.Box) for _, part, _ in self._parts):
            for key, part, columns in self._parts:
                array = np.asarray(self._entry(observation, key))
                if array.shape != (len(rows), *(part.shape or ())):
                    raise EnvironmentFailed(f"{self._name} returned {key} of shape {array.shape}; its observation "
                                            f"space says {(len(rows), *(part.shape or ()))}")  # fmt: skip
                rows[:, columns] = array.reshape(len(rows), -1)
        else:
            for row, one in zip(rows, iterate(batched, observation), strict=True):
                self.write(one, row)

    def _entry(self, observation: Any, key: str) -> Any:
        if not self._is_dict:
            return observation
        try:
            return observation[key]
        except (KeyError, TypeError, IndexError):
            raise EnvironmentFailed(f"{self._name} returned an observation without {key}") from None

    def _size(self, key: str, part: spaces.Space) -> int:
        if isinstance(part, spaces.Box) and part.dtype == np.uint8 and len(part.shape) >= 2:
            raise UserError(f"{self._name} observes an image, {key} {part.shape}; there is no policy for images yet: "
                            "use a variant of it that observes numbers")  # fmt: skip
        try:
            return spaces.flatdim(part)
        except (ValueError, NotImplementedError):
            raise UserError(f"{self._name} observes {key}, {part}, of no fixed size; supported are spaces that "
                            "Gymnasium flattens to a vector") from None  # fmt: skip


def action_bounds(space: spaces.Space, name: str) -> spaces.Box:
    """Return the bounds (A,) float32 of a flattened action.

    Args:
        space: of one world's action.
        name: of the environment, for the message of an error.

    Raises:
        UserError: it is not a Box of real numbers with finite limits that differ.
    """
    if not isinstance(space, spaces.Box):
        raise UserError(f"{name} has actions {space}; supported is a Box of real numbers, not choices: "
                        "use a variant of it with continuous actions")  # fmt: skip
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(f"{name} has actions of {space.dtype}; supported is a Box of real numbers")
    low, high = (np.asarray(v, np.float32).reshape(-1) for v in (space.low, space.high))
    if not low.size:
        raise UserError(f"{name} takes no action: its Box is empty")
    bad = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
    if bad.any():
        i = int(bad.nonzero()[0][0])
        raise UserError(f"{name} has an action {i} from {low[i]:g} to {high[i]:g}; actions need finite limits that "
                        "differ: register an id that wraps it in gymnasium.wrappers.TransformAction, with an "
                        "action space that has such limits")  # fmt: skip
    return spaces.Box(low, high, dtype=np.float32)
