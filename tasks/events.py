"""Named changes to the worlds: what they do, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import torch

from sim.errors import UserError, unknown

_OBJECTS = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "jnt": mujoco.mjtObj.mjOBJ_JOINT,
    "dof": mujoco.mjtObj.mjOBJ_JOINT,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
}
"""What the fields of an mjModel are indexed by, from their prefix."""


@dataclass(frozen=True)
class Change:
    """A named operation on some worlds of a task, not yet tied to a moment."""

    name: str
    """Shown in messages and recorded with the run."""
    operation: Callable[[Any, torch.Tensor], None]
    """Called with the task and the worlds' ids (n,); with n = 0 it only checks the names it uses."""
    limits: tuple[float, float] | None = None
    """The range of what it draws, for the record; None if it draws nothing."""


@dataclass(frozen=True)
class Event:
    """A change to the worlds and the moment for it."""

    change: Change
    when: str
    """``"start"``, ``"reset"`` or ``"interval"``."""
    interval_s: tuple[float, float] = (0.0, 0.0)
    """For an interval event: the time to the next one is drawn uniformly from this range, s, in each world."""


def at_start(change: Change) -> Event:
    """Apply a change once, to every world, before the first episode."""
    return Event(change, "start")


def at_reset(change: Change) -> Event:
    """Apply a change to each world at the start of its episodes."""
    return Event(change, "reset")


def every(seconds: float | tuple[float, float], change: Change) -> Event:
    """Apply a change to each world every so many seconds, drawn anew each time if a range is given."""
    low, high = seconds if isinstance(seconds, tuple) else (seconds, seconds)
    if not 0 < low <= high:
        raise UserError(f"event {change.name}: the interval must be positive and ordered, not {seconds} s")
    return Event(change, "interval", (low, high))


def scale(field: str, *, of: str | tuple[str, ...], by: tuple[float, float]) -> Change:
    """Multiply a model field of one object, or of several alike, by a factor drawn uniformly for each world.

    A body's inertia follows its mass, as of a body made heavier by more of the same stuff, and so stays physical.

    Args:
        field: an ``mjModel`` field by name, e.g. ``"body_mass"``, ``"geom_friction"``; its prefix says what `of` names.
        of: the body, geom, joint or actuator by name, several names, or ``"*"`` for all.
        by: the range of the factor.
    """
    if not 0 < by[0] <= by[1]:
        raise UserError(f"scale {field}: the range must be positive and ordered, not {by}")
    names = (of,) if isinstance(of, str) else of
    fields = ("body_mass", "body_inertia") if field == "body_mass" else (field,)

    def operation(task: Any, ids: torch.Tensor) -> None:
        rows = [row for name in names for row in _rows(task.sim.model, field.split("_")[0], name)]
        factor = task.uniform(*by, len(ids), 1)
        for name in fields:
            values = task.sim.expand(name)
            nominal = torch.as_tensor(getattr(task.sim.model, name)[rows], device=values.device)
            values[ids[:, None], rows] = nominal * factor.reshape(-1, *[1] * nominal.dim())
        _follow(task, field, ids)

    return Change(f"{field}.{','.join(names)}", operation, by)


def payload(*, on: str, mass: tuple[float, float]) -> Change:
    """Add a point mass drawn uniformly, kg, at the centre of mass of a body."""

    def operation(task: Any, ids: torch.Tensor) -> None:
        rows = _rows(task.sim.model, "body", on)
        nominal = torch.as_tensor(task.sim.model.body_mass[rows])
        task.sim.expand("body_mass")[ids[:, None], rows] = nominal + task.uniform(*mass, len(ids), 1)
        _follow(task, "body_mass", ids)

    return Change(f"payload.{on}", operation, mass)


def push(velocity: float) -> Change:
    """Add a horizontal velocity to the robot's base, each component uniform in [-velocity, velocity] m/s."""

    def operation(task: Any, ids: torch.Tensor) -> None:
        start = int(task.sim.model.body_dofadr[task.robot.base])
        task.sim.qvel[ids, start : start + 2] += task.uniform(-velocity, velocity, len(ids), 2)

    return Change("push", operation, (-velocity, velocity))


def _follow(task: Any, field: str, ids: torch.Tensor) -> None:
    """Let MuJoCo's derived constants follow a changed inertial property; contact properties have none."""
    if len(ids) and field.startswith(("body_", "dof_")):
        task.sim.set_const(ids)


def _rows(model: mujoco.MjModel, kind: str, name: str) -> list[int]:
    if kind not in _OBJECTS:
        raise unknown("model field prefix", kind, _OBJECTS)
    counts = {"body": model.nbody, "geom": model.ngeom, "dof": model.nv, "jnt": model.njnt, "actuator": model.nu}
    if name == "*":
        return list(range(counts[kind]))
    found = mujoco.mj_name2id(model, _OBJECTS[kind], name)
    if found < 0:
        known = (mujoco.mj_id2name(model, _OBJECTS[kind], i) for i in range(counts[kind]))
        raise unknown(kind, name, [k for k in known if k])
    return [int(model.jnt_dofadr[found])] if kind == "dof" else [found]
