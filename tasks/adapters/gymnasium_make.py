"""Gymnasium environments by id, with every way in which one cannot be made said in one line."""

import difflib
import importlib
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sim.errors import UserError, missing
from tasks.adapters.gymnasium_robotics_mend import mend

_log = logging.getLogger(__name__)

_ROBOTICS = "gymnasium_robotics"
_ROBOTICS_NAMES = ("AdroitHand", "AntMaze", "Fetch", "FrankaKitchen", "Hand", "PointMaze")


def find(env_id: str) -> EnvSpec:
    """Return what is registered under an id, e.g. ``HalfCheetah-v5``, or ``module:Id-v0`` to import a module first.

    Raises:
        UserError: there is no such id, or the package or module that registers it is not installed or fails to load.
    """
    module, colon, name = env_id.rpartition(":")
    if colon:
        _import(env_id, module)
    if name not in gymnasium.registry and name.startswith(_ROBOTICS_NAMES):
        if importlib.util.find_spec(_ROBOTICS) is None:
            raise missing(env_id, "gymnasium-robotics", "robotics")
        with redirect_stderr(io.StringIO()):  # it prints a notice of its versions, whichever environment is asked for
            _import(env_id, _ROBOTICS)
    if name not in gymnasium.registry:
        close = difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else "write module:Id-v0 for one that a package of its own brings"
        raise UserError(f"unknown Gymnasium environment {name!r}; {hint}")
    return gymnasium.registry[name]


def exists(env_id: str) -> bool:
    """Return whether there is such an environment."""
    try:
        find(env_id)
    except UserError:
        return False
    return True


def make_one(env_id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """Return one world, without a time limit: that is the caller's.

    Raises:
        UserError: it cannot be made.
    """
    spec = find(env_id)
    env = _made(spec, env_id, lambda: gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **kwargs))
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.spaces.Space):
            shut(env, env_id)
            raise UserError(f"{env_id} has no {name}: it must be a gymnasium.spaces.Space, set before reset")
    return env


def make_vector(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> gymnasium.vector.VectorEnv:
    """Return N worlds of an environment that exists only as a vector environment of its own.

    Raises:
        UserError: it cannot be made.
    """
    spec = find(env_id)
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    return _made(spec, env_id, lambda: gymnasium.make_vec(spec, num_envs, vectorization_mode=mode, **kwargs))


def shut(env: gymnasium.Env | gymnasium.vector.VectorEnv, env_id: str) -> None:
    """Close a world or several; one that cannot even be closed must not spoil what was done with it."""
    try:
        env.close()
    except Exception as error:  # the environment's own code may raise anything
        _log.warning("%s raised in close: %s", env_id, said(error))


def _import(env_id: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = f"{error.name}.py"
        if Path(here).exists():
            told = f"PYTHONPATH=. robolearn ... {error.name}:{env_id.rpartition(':')[2]}"
            raise UserError(f"{env_id} needs {here}, which is here and not where Python looks: {told}") from None
        raise UserError(f"{env_id} needs the package {error.name!r}, which is not installed") from None
    except Exception as error:  # another package's code may raise anything
        raise UserError(f"{env_id}: {module} fails to import: {said(error)}") from error


def _made(spec: EnvSpec, env_id: str, make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings(), _old_models():
        warnings.simplefilter("ignore")  # of newer versions, and of what the environment checker would say
        try:
            if isinstance(spec.entry_point, str):
                load_env_creator(spec.entry_point)
            if _ROBOTICS in sys.modules:  # also where a package of another name builds on it
                mend()
            return make()
        except ModuleNotFoundError as error:
            raise UserError(f"{env_id} needs the package {error.name!r}, which is not installed") from None
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{env_id} needs a package that is not installed: {said(error)}") from None
        except Exception as error:  # the environment's own code may raise anything
            raise UserError(f"{env_id} cannot be made: {said(error)}") from error


@contextmanager
def _old_models() -> Iterator[None]:
    """Keep quiet that a model is written for an older MuJoCo: who uses the environment cannot change that."""

    def warn(text: str) -> None:
        if "deprecated" not in text:
            _log.warning("MuJoCo: %s", text)

    if mujoco.get_mju_user_warning() is not None:  # somebody hears the warnings already
        yield
        return
    mujoco.set_mju_user_warning(warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def said(error: BaseException) -> str:
    """Return what an exception of somebody else's code says, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
