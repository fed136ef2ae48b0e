"""What differs between the contract in a policy file and the one that a task would write today."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from deploy.contract import Action, Contract, Joint, Term


def differences(theirs: Contract, ours: Contract) -> list[str]:
    """Return one sentence for each difference that would change how the policy behaves; empty when there is none.

    Compared are the observation's terms, layout and quaternion order, the place of the normaliser, the action, the
    joints with their default pose and gains, the command's components, and the timing. Provenance, training and golden
    replay are not, nor what a task may vary without deceiving the policy: command ranges, noise and safety limits.
    Numbers are equal when they agree to float32 rounding.

    Args:
        theirs: the contract in the file.
        ours: the contract of the task the file is to be run on.
    """
    return [
        *_terms(theirs, ours),
        *_fields("observation", ("layout", "history_order", "history_fill", "quaternion_order", "gravity"),
                 theirs.observation, ours.observation),
        *_fields("normaliser", ("location",), theirs.normaliser, ours.normaliser),
        *_action(theirs.action, ours.action),
        *_joints(theirs, ours),
        *_fields("robot", ("base_frame", "imu_frame", "imu_mounting"), theirs.robot, ours.robot),
        *_commands(theirs, ours),
        *_fields("timing", ("control_dt", "physics_dt", "decimation"), theirs.timing, ours.timing),
    ]  # fmt: skip


def _terms(theirs: Contract, ours: Contract) -> Iterator[str]:
    yield from _names("observation terms", [t.name for t in theirs.observation.terms],
                      [t.name for t in ours.observation.terms])  # fmt: skip
    known = {term.name: term for term in ours.observation.terms}
    fields = ("source", "dim", "unit", "frame", "scale", "offset", "clip", "history", "needs_estimator")
    for term in theirs.observation.terms:
        if term.name in known:
            other: Term = known[term.name]
            where = f"observation term {term.name!r}"
            yield from _names(f"joints of {where}", term.joints, other.joints)
            yield from _fields(where, fields, term, other)


def _action(theirs: Action, ours: Action) -> Iterator[str]:
    yield from _names("action joints", theirs.joints, ours.joints)
    yield from _fields("action", ("type", "filter", "last_action_definition"), theirs, ours)
    for name in ("scale", "offset", "clip_raw", "clip_target"):
        mine, yours = getattr(theirs, name), getattr(ours, name)
        if mine is None or yours is None:
            yield from _fields("action", (name,), theirs, ours)
            continue
        there = dict(zip(ours.joints, yours, strict=True))
        for joint, value in zip(theirs.joints, mine, strict=True):
            if joint in there and not _equal(value, there[joint]):
                yield _sentence(f"action {name} of {joint!r}", value, there[joint])


def _joints(theirs: Contract, ours: Contract) -> Iterator[str]:
    mine, yours = theirs.robot, ours.robot
    # The action's joints have their own comparison, with the order; here a joint is looked up by name.
    for kind, fields in (("joints", ("default_pos", "kp", "kd", "unit")), ("uncontrolled", ("hold_pos", "kp", "kd"))):
        there: dict[str, Joint] = {joint.name: joint for joint in getattr(yours, kind)}
        own = {joint.name: joint for joint in getattr(mine, kind)}
        if kind == "uncontrolled" or theirs.action.type == ours.action.type == "actuator":
            yield from _names(f"robot {kind}", sorted(own), sorted(there))
        for name, joint in own.items():
            if name in there:
                yield from _fields(f"joint {name!r}", fields, joint, there[name])


def _commands(theirs: Contract, ours: Contract) -> Iterator[str]:
    yield from _names("commands", [c.name for c in theirs.commands], [c.name for c in ours.commands])
    there = {command.name: command for command in ours.commands}
    for command in theirs.commands:
        if command.name in there:
            yield from _fields(f"command {command.name!r}", ("components", "units"), command, there[command.name])


def _names(what: str, theirs: Sequence[str], ours: Sequence[str]) -> Iterator[str]:
    """Names that only one side has, or else the first place where the order differs."""
    only_file = [name for name in theirs if name not in ours]
    only_task = [name for name in ours if name not in theirs]
    if only_file:
        yield f"{what}: only the file has {', '.join(only_file)}"
    if only_task:
        yield f"{what}: only the task has {', '.join(only_task)}"
    if only_file or only_task:
        return
    moved = [(a, b) for a, b in zip(theirs, ours, strict=True) if a != b]
    if moved:
        place = list(theirs).index(moved[0][0])
        yield (
            f"{what} are in another order ({len(moved)} of {len(theirs)} moved): "
            f"at place {place} the file has {moved[0][0]!r} and the task {moved[0][1]!r}"
        )


def _fields(where: str, names: Sequence[str], theirs: Any, ours: Any) -> Iterator[str]:
    for name in names:
        mine, yours = getattr(theirs, name), getattr(ours, name)
        if not _equal(mine, yours):
            yield _sentence(f"{where}: {name}", mine, yours)


def _sentence(what: str, theirs: Any, ours: Any) -> str:
    return f"{what} is {_shown(theirs)} in the file and {_shown(ours)} in the task"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and a == b


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if value is None:
        return "not set"
    return repr(value) if isinstance(value, str) else f"{value:.9g}" if isinstance(value, float) else str(value)
