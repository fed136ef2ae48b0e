"""From a Stable-Baselines3 zip trained elsewhere to a run directory that evaluates and exports."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from robolearn import checkpoint
from robolearn import run as runs
from robolearn.algorithms.registry import algorithm_class
from robolearn.algorithms.sb3_config import Sb3OffPolicyConfig, Sb3OnPolicyConfig
from robolearn.algorithms.sb3_files import SavedModel, Statistics, read_model, read_statistics
from robolearn.algorithms.sb3_policy import Shape, set_statistics
from robolearn.config import to_dict
from robolearn.policies.mlp import ACTIVATIONS
from robolearn.run import Run
from robolearn.training import TrainConfig, default_config, make_env
from sim.errors import UserError
from tasks.vector_env import VectorEnv

MODULES: dict[str, tuple[str, ...]] = {
    "stable_baselines3.sac.policies": ("sb3:sac",),
    "stable_baselines3.td3.policies": ("sb3:td3", "sb3:ddpg"),
    "stable_baselines3.common.policies": ("sb3:ppo", "sb3:a2c"),
}
"""The algorithms whose policies are from a module of SB3."""
_NUMBERS = {"num_envs": "n_envs", "steps": "num_timesteps", "seed": "seed"}
"""Fields of a training's config, and what SB3 calls them."""
ITERATION = 1
"""Of the checkpoint of an imported run: one, whatever came before."""


def imported_config(
    path: Path, task: str, algo: str | None = None, normalized: bool = False, sim: str = "mujoco"
) -> TrainConfig:
    """Return the config that a saved model would have been trained with here.

    Hyper-parameters that the file holds as objects, such as schedules, are left at their defaults.

    Args:
        path: a zip file that an SB3 algorithm saved.
        task: a task by name.
        algo: its algorithm; read from the file if not given.
        normalized: whether its observations were normalised.
        sim: what the task's worlds come from.

    Raises:
        UserError: the file cannot be read, is of another algorithm, or of a policy that cannot be imported.
    """
    model = read_model(path)
    algo = _algorithm(model, algo)
    Config = algorithm_class(algo).Config
    shape = _shape(model, algo)
    own = {f.name for base in (Sb3OnPolicyConfig, Sb3OffPolicyConfig) for f in fields(base)}
    names = {f.name for f in fields(Config)} - own
    plain = {n: model.data[n] for n in names if n in model.data and not isinstance(model.data[n], dict | list)}
    settings = {"hidden": shape.hidden, "activation": _activation(model, Config.activation)}
    settings |= {"normalize_observation": normalized}
    if issubclass(Config, Sb3OnPolicyConfig):
        settings["normalize_action"] = False
    numbers = {name: model.data.get(saved) for name, saved in _NUMBERS.items()}
    least = {name: 0 if name == "seed" else 1 for name in numbers}  # a model that was never trained has 0 steps
    changes: dict[str, Any] = {name: n for name, n in numbers.items() if type(n) is int and n >= least[name]}
    changes["algorithm"] = plain | settings
    return default_config(task, algo, sim=sim, **changes)


def import_model(path: Path, config: TrainConfig, root: Path | str, statistics_path: Path | None = None) -> Run:
    """Make a run directory of a saved model and return it.

    Args:
        path: a zip file that an SB3 algorithm saved.
        config: `imported_config` of it, perhaps with another task config.
        root: where runs are kept.
        statistics_path: the file that VecNormalize saved beside it, if one is to be taken in.

    Raises:
        UserError: a file cannot be read, or what it holds does not fit the task; or the run cannot be written.
    """
    model = read_model(path)
    statistics = None if statistics_path is None else read_statistics(statistics_path)
    if statistics is not None:
        config.algorithm.clip_observation = statistics.limit
    config.algorithm.normalize_observation = statistics is not None
    env = make_env(config, num_envs=1)
    _check_fits(model, _shape(model, config.algo), env)
    cls: Any = algorithm_class(config.algo)
    policy = cls.policy_for(env, config.algorithm)
    cls.Actor(config.algorithm).take(policy, model.parameters)
    if statistics is not None:
        _take_statistics(policy, statistics, statistics_path)
    run = runs.create(root, config.task, config.algo, config, config.seed, config.device)
    try:
        _say_source(run, model, statistics_path)
        payload = {
            "config": to_dict(config),
            "iteration": ITERATION,
            "seconds": 0.0,
            "algorithm": {"policy": policy.state_dict()},
            "env": env.state_dict(),
            "rng": checkpoint.rng_state(),
        }
        checkpoint.save_numbered(run.checkpoints, ITERATION, payload)
    except BaseException:
        run.discard_if_empty()
        raise
    return run


def _algorithm(model: SavedModel, asked: str | None) -> str:
    """Return the name of the algorithm that a model was trained with."""
    possible = MODULES.get(model.policy_module, ())
    if asked is not None:
        every = [name for names in MODULES.values() for name in names]
        if asked not in every:
            algorithm_class(asked)
            raise UserError(f"{asked} is not an algorithm of Stable-Baselines3; give one of {', '.join(every)}")
        if possible and asked not in possible:
            raise UserError(f"{model.path} was trained with {' or '.join(possible)}, not {asked}")
        return asked
    if not possible:
        origin = model.policy_module or "an unknown module"
        raise UserError(f"{model.path}: its policy is from {origin}, not from {' or '.join(MODULES)}; "
                        "if it is built like one of theirs, say which with --algo")  # fmt: skip
    told = {"sb3:ddpg": "critic.qf1.0.weight" not in model.parameters, "sb3:a2c": "n_epochs" not in model.data}
    return possible[-1] if told.get(possible[-1]) else possible[0]


def _shape(model: SavedModel, algo: str) -> Shape:
    """Return the sizes of the actor.

    Raises:
        UserError: it is no perceptron whose deterministic action our policies reproduce.
    """
    if model.data.get("use_sde"):
        raise UserError(f"{model.path} explores with state-dependent noise (use_sde), and is not imported")
    extractor = model.argument("features_extractor_class")
    if extractor is not None and "FlattenExtractor" not in str(extractor):
        raise UserError(f"{model.path} has a features extractor of its own, {extractor}, and is not imported")
    if model.argument("squash_output"):
        raise UserError(f"{model.path} was made with squash_output, and is not imported")
    observation, action = model.size("observation_space"), model.size("action_space")
    cls: Any = algorithm_class(algo)
    try:
        shape = cls.Actor.shape(model.parameters)
    except ValueError as error:
        raise UserError(f"{model.path}: its policy is not a plain perceptron of {algo}: {error}") from None
    if shape.observation != observation or shape.action != action:
        raise UserError(f"{model.path}: its network takes {shape.observation} and gives {shape.action} numbers, "
                        f"and its spaces have {observation} and {action}")  # fmt: skip
    return shape


def _activation(model: SavedModel, default: str) -> str:
    given = model.argument("activation_fn")
    if given is None:
        return default
    found = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(given))
    names = {module.__name__: name for name, module in ACTIVATIONS.items()}
    if found is None or found[1] not in names:
        raise UserError(f"{model.path}: its activation is {given}; policies of ours have {', '.join(names)}")
    return names[found[1]]


def _check_fits(model: SavedModel, shape: Shape, env: VectorEnv) -> None:
    """Refuse a policy for other observations or actions than the environment's.

    Raises:
        UserError: as said; names both.
    """
    terms = env.observation_terms["policy"]
    size = sum(terms.values())
    if shape.observation != size:
        stated = ", ".join(f"{name} {n}" for name, n in terms.items())
        raise UserError(f"{model.path} observes {shape.observation} numbers, and the task gives {size}: {stated}")
    space = env.single_action_space
    if shape.action != space.shape[0]:
        raise UserError(f"{model.path} has {shape.action} actions, and the task {space.shape[0]}")
    low, high = model.action_bounds()
    if not (np.allclose(low, space.low, 1e-5, 1e-6) and np.allclose(high, space.high, 1e-5, 1e-6)):
        raise UserError(f"{model.path} has actions from {low.tolist()} to {high.tolist()}, and the task from "
                        f"{space.low.tolist()} to {space.high.tolist()}")  # fmt: skip


def _take_statistics(policy: Any, statistics: Statistics, path: Path | None) -> None:
    size = len(policy.normalizer.mean)
    if len(statistics.mean) != size:
        raise UserError(f"{path} is of observations of {len(statistics.mean)} numbers, and the policy takes {size}")
    set_statistics(policy.normalizer, statistics.mean, statistics.var, statistics.count, statistics.epsilon)


def _say_source(run: Run, model: SavedModel, statistics: Path | None) -> None:
    """Note in ``environment.json`` what the run was made from."""
    about = json.loads(run.environment.read_text(encoding="utf-8"))
    source: dict[str, Any] = {**_file(model.path), "stable_baselines3": model.version}
    source["timesteps"] = model.data.get("num_timesteps")
    if statistics is not None:
        source["normalize"] = _file(statistics)
    text = json.dumps(about | {"imported": source}, indent=2) + "\n"
    try:
        run.environment.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {run.environment}: {error.strerror}") from None


def _file(path: Path) -> Mapping[str, str]:
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
