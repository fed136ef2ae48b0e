"""The seam between the controller and a robot: what is read, what is written, and who the robot is."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class RobotProfile:
    """A robot as its driver knows it.

    `joints` are the names in motor order, the order of every array that crosses this seam; `imu_frame` names the frame
    the IMU measures in, as the robot's model does.
    """

    name: str
    joints: tuple[str, ...]
    imu_frame: str


@dataclass(slots=True)
class RobotState:
    """One sample of the robot, in arrays made once and filled in place. Joints in motor order.

    `joint_position` (J,) rad, `joint_velocity` (J,) rad/s, `joint_torque` (J,) N m; `imu_quaternion` (4,) (w, x, y, z)
    turns the IMU's frame into the world's; `imu_angular_velocity` (3,) rad/s in the IMU's frame; `linear_velocity` (3,)
    m/s of the base in the base frame, NaN on a robot that does not know it, and never shown to a policy.
    """

    joint_position: np.ndarray
    joint_velocity: np.ndarray
    joint_torque: np.ndarray
    imu_quaternion: np.ndarray
    imu_angular_velocity: np.ndarray
    linear_velocity: np.ndarray

    @classmethod
    def empty(cls, joints: int) -> "RobotState":
        """Return a state of `joints` joints in which nothing has been measured."""
        return cls(*(np.full(size, np.nan) for size in (joints, joints, joints, 4, 3, 3)))


@dataclass(slots=True)
class JointCommand:
    """A command to every motor, (J,) each in motor order.

    The motor applies `torque + kp * (position - q) + kd * (velocity - dq)`, in N m, rad and rad/s.
    """

    position: np.ndarray
    velocity: np.ndarray
    kp: np.ndarray
    kd: np.ndarray
    torque: np.ndarray

    @classmethod
    def zero(cls, joints: int) -> "JointCommand":
        """Return a command that asks no torque of `joints` motors."""
        return cls(*(np.zeros(joints) for _ in range(5)))


class ReadStatus(NamedTuple):
    """Which sample was read: its number, which grows with every new one, and its age in seconds."""

    sequence: int
    age: float


class RobotIO(Protocol):
    """A robot, simulated or real. Calls never block longer than a small part of a control period."""

    profile: RobotProfile

    def open(self) -> None:
        """Connect, and return when a first state has arrived. No motor is driven yet."""
        ...

    def read(self, out: RobotState) -> ReadStatus:
        """Fill `out` with the latest state."""
        ...

    def write(self, command: JointCommand) -> None:
        """Send a whole command. The arrays are used again by the caller."""
        ...

    def damp(self) -> None:
        """Let the motors only resist motion. Works from any state, any number of times."""
        ...

    def close(self) -> None:
        """Damp, then disconnect."""
        ...
