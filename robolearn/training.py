"""One training, whatever the algorithm."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
import tyro

from robolearn import checkpoint
from robolearn.algorithms.registry import Algorithm, algorithm_class
from robolearn.config import from_dict, load_yaml, save_yaml, to_dict, updated
from robolearn.environments import source_of
from robolearn.interrupts import interrupts
from robolearn.log import Log
from robolearn.presets import preset
from robolearn.run import Run
from sim.errors import UserError
from tasks.vector_env import EnvironmentFailed, VectorEnv

SHOWN = ("episode/return", "episode/length")
"""Metrics shown beside the progress bar."""


@dataclass(kw_only=True)
class TrainConfig:
    """Everything that decides a training; ``config.yaml`` holds it whole."""

    task: tyro.conf.Suppress[str]
    """A task by name, or path/to/file.py:Class; with the backend gymnasium, an environment's id."""
    algo: str = "ppo"
    """A learning algorithm by name."""
    sim: str = "mujoco"
    """A physics backend by name, or gymnasium for other people's environments."""
    device: str = "cpu"
    """Where the worlds and the networks live: cpu or cuda."""
    num_envs: int = 256
    """Number of worlds."""
    steps: int = 1_000_000
    """Environment steps of the whole training, over all worlds."""
    seed: int = 0
    """Decides every random number."""
    threads: int = 0
    """CPU threads of the physics; 0 for one for each core."""
    torch_threads: int = 1
    """CPU threads of torch while it learns; small networks are fastest on one."""
    checkpoint_every: int = 25
    """Iterations between checkpoints."""
    env: Any = None
    """The environment's own config."""
    algorithm: Any = None
    """The algorithm's own config."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "steps", "checkpoint_every", "torch_threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be from 0 to 2^63 - 1, not {self.seed}")
        if self.threads < 0:
            raise UserError(f"threads must not be negative, not {self.threads}")


def default_config(task: str, algo: str = "ppo", sim: str = "mujoco", **changes: Any) -> TrainConfig:
    """Return the config that trains a task without tuning, with some fields changed.

    Args:
        task: a task by name.
        algo: an algorithm by name.
        sim: a physics backend by name, or gymnasium.
        changes: fields of `TrainConfig`; dicts for ``env`` and ``algorithm`` change only the fields they name.

    Raises:
        UserError: a name or a field does not exist, or a value is of the wrong type or range.
    """
    env, algorithm = source_of(sim).config(task), algorithm_class(algo).Config()
    base = TrainConfig(task=task, algo=algo, sim=sim, env=env, algorithm=algorithm)
    return updated(updated(base, preset(task, algo), f"preset of {task}"), changes)


def load_config(path: Path) -> TrainConfig:
    """Return the config of a run's ``config.yaml``.

    Raises:
        UserError: the file is not the config of a run, or names what no longer exists.
    """
    data = load_yaml(path)
    for name in ("task", "algo"):
        if not isinstance(data.get(name), str):
            raise UserError(f"{path}: {name} is missing; is this the config.yaml of a run?")
    sim = data.get("sim", "mujoco")
    env, algorithm = source_of(sim).config(data["task"]), algorithm_class(data["algo"])
    parts = {
        "env": from_dict(type(env), data.pop("env", {}), f"{path}: env"),
        "algorithm": from_dict(algorithm.Config, data.pop("algorithm", {}), f"{path}: algorithm"),
    }
    base = TrainConfig(task=data["task"], algo=data["algo"], **parts)
    return updated(base, data, str(path))


def make_env(
    config: TrainConfig, num_envs: int | None = None, seed: int | None = None, draws: bool = False
) -> VectorEnv:
    """Return the environment of a config, with another number of worlds or seed if given.

    Args:
        config: of the training.
        num_envs: number of worlds.
        seed: decides them.
        draws: whether they are to be drawn.

    Raises:
        UserError: it cannot be made.
    """
    source, seed = source_of(config.sim), config.seed if seed is None else seed
    return source.make(
        config.task, config.env, config.sim, num_envs or config.num_envs, seed, config.device, config.threads, draws
    )


class TrainingFailed(UserError):
    """A training that began as asked and could not go on, after ``iterations`` of which something was learned."""

    def __init__(self, message: str, iterations: int):
        super().__init__(message)
        self.iterations = iterations


@dataclass
class Outcome:
    """What came of a training."""

    iterations: int
    """Iterations done, over all its resumptions."""
    steps: int
    """Environment steps done, likewise."""
    seconds: float
    """Wall-clock time of training, likewise."""
    finished: bool
    """False if it was interrupted."""


def train(config: TrainConfig, run: Run, resume: bool = False, init: Run | None = None) -> Outcome:
    """Train, or go on training, and save checkpoints at the start, on the way and at the end.

    An interrupt or a termination signal ends the training after the iteration it is in, with a checkpoint.

    Args:
        config: what to train.
        run: where to write.
        resume: go on from the run's checkpoint, bit for bit as if it had never stopped; the run keeps ``config``.
        init: begin with the policy of this run's checkpoint, its normaliser included; nothing else of it is taken.

    Raises:
        UserError: the config, or a checkpoint under it, does not fit the task; another process trains the run;
            or a run to resume has done all of its steps.
        TrainingFailed: a term of the task is not finite, an environment cannot be stepped any further, or the disk is
            full.
    """
    with run.locked():
        # Ours all come from generators of their own; a user's task may draw from these.
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)  # noqa: NPY002
        torch.manual_seed(config.seed)
        env = make_env(config)
        try:
            return _train(config, env, run, resume, init)
        finally:
            env.close()


def _train(config: TrainConfig, env: VectorEnv, run: Run, resume: bool, init: Run | None) -> Outcome:
    algorithm: Algorithm = algorithm_class(config.algo)(env, config.algorithm, config.seed)
    done, seconds = 0, 0.0
    if resume:
        done, seconds = _restore(run, config, algorithm, env)
        if done * algorithm.steps_per_iteration >= config.steps:
            steps = f"{done * algorithm.steps_per_iteration:,}"
            raise UserError(f"{run.path} has already done {steps} steps; give more with --steps")
        save_yaml(run.config, config)
    elif init is not None:
        _initialise(init, config, algorithm)
    total = -(-config.steps // algorithm.steps_per_iteration)
    began = monotonic() - seconds
    saved = done if resume else -1
    try:
        with interrupts() as interrupted, Log(run, done, total, algorithm.steps_per_iteration) as log:
            while done < total and not interrupted.is_set():
                if saved < 0 or done - saved == config.checkpoint_every:
                    _save(run, config, algorithm, env, done, monotonic() - began)
                    saved = done
                start = monotonic()
                stats = collect(algorithm, env)
                middle = monotonic()
                metrics = update(algorithm, done / total, config.torch_threads)
                now = monotonic()
                done += 1
                times = {"time/collect": middle - start, "time/update": now - middle, "time/total": now - began}
                steps = {"steps": done * algorithm.steps_per_iteration}
                log.write(done - 1, steps | stats | metrics | env.log() | env.health() | times, SHOWN)
            if saved != done:
                _save(run, config, algorithm, env, done, monotonic() - began)
    except EnvironmentFailed as error:
        # The networks are as sound as they were: nothing of the step that failed has reached them.
        if done == 0:
            raise TrainingFailed(str(error), 0) from error
        _save(run, config, algorithm, env, done, monotonic() - began)
        raise TrainingFailed(f"{error}; what was learned before is saved, as of iteration {done}", done) from error
    except UserError as error:
        raise TrainingFailed(str(error), done) from error
    return Outcome(done, done * algorithm.steps_per_iteration, monotonic() - began, done >= total)


def collect(algorithm: Algorithm, env: VectorEnv) -> dict[str, float]:
    """Gather experience with torch on one thread: more would fight with the physics over the cores."""
    torch.set_num_threads(1)
    return algorithm.collect(env)


def update(algorithm: Algorithm, progress: float, torch_threads: int) -> dict[str, float]:
    """Learn with torch on so many threads."""
    torch.set_num_threads(torch_threads)
    return algorithm.update(progress)


def _save(run: Run, config: TrainConfig, algorithm: Algorithm, env: VectorEnv, iteration: int, seconds: float) -> None:
    payload = {
        "config": to_dict(config),
        "iteration": iteration,
        "seconds": seconds,
        "algorithm": algorithm.state_dict(),
        "env": env.state_dict(),
        "rng": checkpoint.rng_state(),
    }
    checkpoint.save_numbered(run.checkpoints, iteration, payload)


def _restore(run: Run, config: TrainConfig, algorithm: Algorithm, env: VectorEnv) -> tuple[int, float]:
    """Load the run's checkpoint and return the iterations and seconds it had taken."""
    path, payload = run.load(config.device)
    saved = payload["config"]
    for name in ("task", "algo"):
        if saved[name] != getattr(config, name):
            raise UserError(f"{path} was trained with {name} {saved[name]!r}, not {getattr(config, name)!r}")
    with _fitting(path):
        algorithm.load_state_dict(payload["algorithm"])
    env.load_state_dict(payload["env"])
    checkpoint.set_rng_state(payload["rng"])
    return payload["iteration"], payload["seconds"]


def _initialise(init: Run, config: TrainConfig, algorithm: Algorithm) -> None:
    path, payload = init.load(config.device)
    with _fitting(path):
        algorithm.policy.load_state_dict(payload["algorithm"]["policy"])


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Say which checkpoint it is whose tensors do not fit."""
    try:
        yield
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"{path} does not fit the networks of this config: {reason}") from None
