"""What a policy is given and asked, in the words of whoever supplies it outside the simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What an observation term is a measurement of."""

    source: str
    """What is measured. A robot's controller supplies ``angular_velocity`` and ``projected_gravity`` of the base,
    ``joint_position_relative`` (to the default pose), ``joint_velocity``, ``last_action`` and ``command``; any other
    word names something that only the simulation knows."""
    unit: str = ""
    """SI unit; several, separated by commas, where the entries differ."""
    frame: str = ""
    """Body whose axes a vector's entries are along; empty for what is no vector."""
    joints: tuple[str, ...] = ()
    """The joint of each entry, where each belongs to one."""
    needs_estimator: bool = False
    """Whether a real robot must estimate it, as it must its linear velocity, for want of a sensor."""


@dataclass(frozen=True, kw_only=True)
class CommandRange:
    """What an operator may ask, one value for each component."""

    name: str
    components: tuple[str, ...]
    """E.g. ``linear_velocity_x``, ``angular_velocity_z``: of the base, in the base frame."""
    units: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    """Low and high end of what the task asks."""
    default: tuple[float, ...]
    """What is asked when nobody asks anything."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What a task says of its policy's inputs beyond their names, sizes and noise."""

    observation: Mapping[str, Quantity] = field(default_factory=dict)
    """By name of the policy's terms; a term left out is known to the simulation alone."""
    commands: tuple[CommandRange, ...] = ()
    """In the order of the terms whose source is ``command``."""
    tilt_limit: float | None = None
    """Angle between the base's z axis and up, rad, beyond which a controller should give up; None for no limit."""


@dataclass(frozen=True)
class ActionTerm:
    """How actions (N, A) become what the actuators are told: ``offset + scale * clip(action, low, high)``."""

    names: tuple[str, ...]
    """The actuated joints or actuators, in action order."""
    kind: str
    """``"position"`` for joint targets in rad, ``"actuator"`` for the actuators' own controls."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
