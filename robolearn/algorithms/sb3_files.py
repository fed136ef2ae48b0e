"""The files that Stable-Baselines3 saves, read as data: nothing in them is ever run.

A model is a zip file. Of its JSON entry only the plain texts and numbers are read, not the pickles in it; its weights
are read as tensors. What VecNormalize saves is a pickle, of which only arrays and numbers are rebuilt.
"""

import importlib
import io
import json
import math
import pickle
import re
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sim.errors import UserError

LARGEST = 2**31
"""Bytes of an entry, unpacked, beyond which a file is not read."""
_VERSION = "_stable_baselines3_version"


@dataclass(frozen=True)
class SavedModel:
    """What a zip file tells without unpickling."""

    path: Path
    version: str
    """Of Stable-Baselines3; empty in old files."""
    data: dict[str, Any]
    """The model's attributes by name; those that are objects have their type under ``:type:`` and their own attributes
    as texts."""
    parameters: dict[str, torch.Tensor]
    """The ``state_dict`` of the policy."""

    @property
    def policy_module(self) -> str:
        """The module that the class of the policy is from."""
        saved = self.data.get("policy_class")
        return str(saved.get("__module__", "")) if isinstance(saved, dict) else ""

    def argument(self, name: str) -> Any:
        """Return an argument given to the policy, an object as a text; None if it was not given."""
        saved = self.data.get("policy_kwargs")
        return saved.get(name) if isinstance(saved, dict) else None

    def size(self, space: str) -> int:
        """Return the length of a row of ``"observation_space"`` or ``"action_space"``.

        Raises:
            UserError: it is no vector of numbers.
        """
        saved, what = self.data.get(space), space.partition("_")[0]
        kind = re.search(r"(\w+)'>$", str(saved.get(":type:", ""))) if isinstance(saved, dict) else None
        shape = saved.get("_shape") if isinstance(saved, dict) else None
        if kind is None or kind[1] != "Box" or not isinstance(shape, list):
            raise UserError(f"{self.path}: its {what} is a {kind[1] if kind else 'thing'} space; "
                            "a policy is imported if observation and action are vectors of numbers")  # fmt: skip
        if len(shape) != 1:
            raise UserError(f"{self.path}: its {what} has shape {tuple(shape)}, and images are not imported")
        return int(shape[0])

    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper limits (A,) of the action.

        Raises:
            UserError: they cannot be read.
        """
        size, space = self.size("action_space"), self.data["action_space"]
        ends = []
        for name in ("low", "high"):
            numbers = [float(word) for word in re.findall(r"-?(?:inf|\d+\.?\d*(?:e[-+]?\d+)?)", str(space.get(name)))]
            if len(numbers) != size:
                raise UserError(f"{self.path}: the limits of its {size} actions cannot be read")
            ends.append(np.array(numbers, np.float32))
        return ends[0], ends[1]


@dataclass(frozen=True)
class Statistics:
    """What VecNormalize knows of observations: it gives ``clip((x - mean) / sqrt(var + epsilon), -limit, limit)``."""

    mean: np.ndarray
    """(D,) float64."""
    var: np.ndarray
    """(D,) float64."""
    count: float
    epsilon: float
    limit: float


def read_model(path: Path) -> SavedModel:
    """Return what a model's zip file holds.

    Raises:
        UserError: the file cannot be read, or is not one that SB3 saved.
    """
    foreign = UserError(f"{path} is not a model that Stable-Baselines3 saved, or it is damaged")
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(_entry(archive, "data", path))
            weights = _entry(archive, "policy.pth", path)
            version = _entry(archive, _VERSION, path) if _VERSION in archive.namelist() else b""
        parameters = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: its policy.pth holds more than tensors, and is not loaded") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, RuntimeError, NotImplementedError):
        raise foreign from None
    if not isinstance(data, dict) or not isinstance(parameters, dict):
        raise foreign
    if not all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in parameters.items()):
        raise foreign
    return SavedModel(path, version.decode("ascii", "replace").strip(), data, dict(parameters))


def read_statistics(path: Path) -> Statistics | None:
    """Return the observation statistics in a file of VecNormalize; None if it normalises only rewards.

    Raises:
        UserError: the file cannot be read, is not one that VecNormalize saved, or names anything else to be run.
    """
    foreign = UserError(f"{path} is not a file that VecNormalize saved, or it is damaged")
    try:
        with path.open("rb") as file:
            saved = _Reader(file).load()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except _Foreign as name:
        raise UserError(f"{path} names {name}, which no file of VecNormalize does; it is not loaded") from None
    except Exception:  # a damaged pickle may raise anything
        raise foreign from None
    if not isinstance(saved, _Inert) or type(saved).__name__ != "VecNormalize":
        raise foreign
    values = vars(saved)
    if not values.get("norm_obs", True):
        return None
    seen = values.get("obs_rms")
    if isinstance(seen, dict):
        raise UserError(f"{path} normalises observations of several keys; only vectors of numbers are imported")
    try:
        inner = vars(seen)
        mean, var = (np.asarray(inner[name], np.float64) for name in ("mean", "var"))
        count, epsilon, limit = float(inner["count"]), float(values["epsilon"]), float(values["clip_obs"])
    except (KeyError, TypeError, ValueError):
        raise foreign from None
    sound = mean.ndim == 1 and mean.shape == var.shape and bool(np.isfinite(mean).all()) and bool((var >= 0).all())
    if not (sound and np.isfinite(var).all() and math.isfinite(count) and epsilon >= 0 and limit > 0):
        raise UserError(f"{path}: its statistics are not finite means and variances of one vector")
    return Statistics(mean, var, count, epsilon, limit)


class _Foreign(Exception):
    """A pickle names something that is neither an array nor known to be in such a file."""


class _Inert:
    """Stands for an object of a class that is not imported, and holds its attributes."""

    def __new__(cls, *_: object, **__: object) -> "_Inert":
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object):
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update({str(name): value for name, value in state.items()})


class _Reader(pickle.Unpickler):
    """Rebuilds numpy's arrays and numbers, and puts an inert object in the place of all else that it knows."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in _DATA:
            return getattr(importlib.import_module(module_name.replace("numpy.core", "numpy._core")), global_name)
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return OrderedDict
        if global_name in _INERT.get(module_name, ()):
            return type(global_name, (_Inert,), {})
        raise _Foreign(f"{module_name}.{global_name}")


_DATA = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}
_SPACES = {
    "box": ("Box",), "dict": ("Dict",), "discrete": ("Discrete",), "multi_binary": ("MultiBinary",),
    "multi_discrete": ("MultiDiscrete",), "tuple": ("Tuple",),
}  # fmt: skip
_INERT: dict[str, Sequence[str]] = {
    "stable_baselines3.common.vec_env.vec_normalize": ("VecNormalize",),
    "stable_baselines3.common.running_mean_std": ("RunningMeanStd",),
    **{f"{package}.spaces.{module}": names for package in ("gym", "gymnasium") for module, names in _SPACES.items()},
    "gym.utils.seeding": ("RandomNumberGenerator",),
    "numpy.random._pickle": ("__generator_ctor", "__bit_generator_ctor", "__randomstate_ctor"),
    "numpy.random._pcg64": ("PCG64",),
    "numpy.random._mt19937": ("MT19937",),
    "numpy.random.bit_generator": ("SeedSequence", "__pyx_unpickle_SeedSequence"),
}
"""What else such a file names, by module: the spaces' own generators among it."""


def _entry(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > LARGEST:
        raise UserError(f"{path}: {name} is {info.file_size / 1e9:.1f} GB unpacked, which no policy of this kind is")
    return archive.read(info)
