"""Tasks by name: the bundled ones, those of installed packages, and those in a user's own file."""

import importlib
import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from sim.errors import UserError, unknown
from tasks.task import Task, TaskConfig

_BUNDLED: dict[str, str] = {
    "CartPole-Balance": "tasks.cartpole:CartPoleBalance",
    "CartPole-Swingup": "tasks.cartpole:CartPoleSwingup",
    "Pendulum-Swingup": "tasks.pendulum:PendulumSwingup",
    "Go2-Velocity-Flat": "tasks.velocity:Velocity",
    "HalfCheetah": "tasks.gym.half_cheetah:HalfCheetah",
    "Hopper": "tasks.gym.hopper:Hopper",
    "Walker2d": "tasks.gym.hopper:Walker2d",
    "Ant": "tasks.gym.ant:Ant",
    "Humanoid": "tasks.gym.humanoid:Humanoid",
    "HumanoidStandup": "tasks.gym.humanoid:HumanoidStandup",
    "Swimmer": "tasks.gym.swimmer:Swimmer",
    "Reacher": "tasks.gym.reacher:Reacher",
    "Pusher": "tasks.gym.pusher:Pusher",
    "InvertedPendulum": "tasks.gym.inverted_pendulum:InvertedPendulum",
    "InvertedDoublePendulum": "tasks.gym.inverted_pendulum:InvertedDoublePendulum",
}

ENTRY_POINT_GROUP = "robolearn.tasks"
"""Packages name their tasks in this entry-point group: ``Name = package.module:Class``."""


def names() -> list[str]:
    """Return the names of all tasks, bundled and installed."""
    return sorted([*_BUNDLED, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))])


def task_class(name: str) -> type[Task[Any]]:
    """Return the task class of a name, or of ``path/to/file.py:Class``.

    Raises:
        UserError: there is no such task, file or class, or the file or package fails to import.
    """
    if name.partition(":")[0].endswith(".py"):
        return _from_file(name)
    if name in _BUNDLED:
        module, _, attribute = _BUNDLED[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return _installed(point)
    raise unknown("task", name, names())


def task_config(name: str) -> TaskConfig:
    """Return the default config of a task."""
    return task_class(name).Config()


def make_task(name: str, config: TaskConfig | None = None, **overrides: Any) -> Task[Any]:
    """Return a task by name.

    Args:
        name: as for `task_class`.
        config: its config, or None for the default one.
        overrides: config fields to change; a dict, e.g. of weights, changes only the entries it names.
    """
    cls = task_class(name)
    config = cls.Config() if config is None else config
    return cls(override(config, overrides))


def override(config: Any, changes: dict[str, Any]) -> Any:
    """Return a config with some fields changed; within a dict field only the entries named.

    Raises:
        UserError: a field or an entry does not exist.
    """
    known = set(config.__dataclass_fields__)
    merged: dict[str, Any] = {}
    for field, value in changes.items():
        if field not in known:
            raise unknown("config field", field, known)
        current = getattr(config, field)
        if isinstance(value, dict) and isinstance(current, dict):
            for entry in value:
                if entry not in current:
                    raise unknown("entry", entry, current, field)
            value = {**current, **value}
        merged[field] = value
    return replace(config, **merged)


def _installed(point: EntryPoint) -> type[Task[Any]]:
    try:
        return point.load()
    except Exception as error:  # another package's code may raise anything
        raise UserError(f"task {point.name} ({point.value}) fails to load: {type(error).__name__}: {error}") from error


def _from_file(target: str) -> type[Task[Any]]:
    filename, _, attribute = target.partition(":")
    path = Path(filename).resolve()
    if not path.is_file():
        raise UserError(f"no task file {filename} in {Path.cwd()}; start from the folder that it is relative to")
    if not attribute:
        raise UserError(f"{filename} names no class; write {filename}:CLASS")
    # Two files of the same stem must not answer for one another, so the whole path names the module.
    module_name = "task_file_" + "_".join(path.with_suffix("").parts[1:])
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the user's file may raise anything
            del sys.modules[module_name]
            raise UserError(f"{filename} fails to import: {type(error).__name__}: {error}") from error
    classes = {n: c for n, c in vars(sys.modules[module_name]).items() if isinstance(c, type) and issubclass(c, Task)}
    if attribute not in classes:
        raise unknown("task class", attribute, classes, filename)
    if not hasattr(classes[attribute], "Config"):
        raise UserError(f"{target} has no Config: name its config class in it, e.g. Config = TaskConfig")
    return classes[attribute]
