"""What our loop hangs into Stable-Baselines3: a logger, a callback, and a way to save VecNormalize as tensors."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from robolearn.algorithms.episodes import EpisodeMeans
from sim.errors import UserError
from tasks.adapters.sb3 import Sb3VecEnv

_log = logging.getLogger(__name__)

_SETTINGS = ("train/n_updates", "train/learning_rate", "train/clip_range")
"""What SB3 records that is no mean of anything."""


class Means(Logger):
    """Keeps the means of what is recorded between two readings, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(folder=None, output_formats=[])

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        keep = super().record if key in _SETTINGS else self.record_mean
        keep(key, value, exclude)

    def means(self) -> dict[str, float]:
        """Return them, and begin anew."""
        read = {name: float(value) for name, value in self.name_to_value.items()}
        self.name_to_value.clear()
        self.name_to_count.clear()
        return read


class Episodes(BaseCallback):
    """Takes in what the environment logs of episodes that end."""

    def __init__(self, venv: Sb3VecEnv, means: EpisodeMeans):
        super().__init__()
        self._venv, self._means = venv, means

    def _on_step(self) -> bool:
        self._means.add(self._venv.extras["log"])
        return True


@contextmanager
def in_one_line() -> Iterator[None]:
    """Say in one line what SB3 refuses, and what it warns of.

    Raises:
        UserError: SB3 refused something.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (AssertionError, ValueError) as error:
            raise UserError(f"Stable-Baselines3: {' '.join(str(error).split())}") from error
    for warning in caught:
        _log.warning("Stable-Baselines3: %s", " ".join(str(warning.message).split()))


def statistics(normalizing: VecNormalize) -> dict[str, Any]:
    """Return the state of a VecNormalize as tensors and numbers."""
    found: dict[str, Any] = {"returns": torch.from_numpy(np.asarray(normalizing.returns, np.float64))}
    for name in ("obs_rms", "ret_rms"):
        if (seen := getattr(normalizing, name, None)) is not None:
            found[name] = {"mean": torch.as_tensor(seen.mean), "var": torch.as_tensor(seen.var),
                           "count": float(seen.count)}  # fmt: skip
    return found


def restore_statistics(normalizing: VecNormalize, state: dict[str, Any]) -> None:
    """Put a VecNormalize into a state that `statistics` returned."""
    normalizing.returns = state["returns"].cpu().numpy()
    for name in ("obs_rms", "ret_rms"):
        if name in state:
            seen, saved = getattr(normalizing, name), state[name]
            seen.mean, seen.var = saved["mean"].cpu().numpy(), saved["var"].cpu().numpy()
            seen.count = saved["count"]
