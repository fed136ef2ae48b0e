"""Building the policy's observation from what a robot measures."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deploy.contract import Contract, Term
from deploy.errors import ContractError
from deploy.joint_order import JointOrder
from deploy.robot_io import RobotProfile, RobotState


class ObservationBuilder:
    """Fills the observation `(1, D)` in the contract's order, history included.

    A term's `source` is one of
    angular_velocity: (3,) of the base in the base frame, rad/s;
    projected_gravity: (3,) unit vector of gravity in the base frame;
    joint_position_relative: of the term's joints, minus their default pose, rad;
    joint_velocity: of the term's joints, rad/s;
    last_action: (A,) the policy's action one step ago, raw or clipped as the contract defines;
    command: (C,) all the contract's commands, one after the other.

    Raises:
        ContractError: a term that this robot cannot supply, or joints that are not the robot's, named.
    """

    def __init__(self, contract: Contract, profile: RobotProfile) -> None:
        if contract.observation.quaternion_order != "wxyz":
            raise ContractError("the policy's quaternions are xyzw, and the controller's are (w, x, y, z)")
        if contract.robot.imu_frame != profile.imu_frame:
            raise ContractError(
                f"the policy was trained with the IMU in frame {contract.robot.imu_frame!r}, "
                f"and robot {profile.name!r} has it in {profile.imu_frame!r}"
            )
        self.order = JointOrder(contract, profile)
        self._mounting = _rotation(np.array(contract.robot.imu_mounting))
        self._default = {joint.name: joint.default_pos for joint in contract.robot.joints}
        self._action_dim = len(contract.action.joints)
        self._command_dim = sum(len(command.components) for command in contract.commands)
        self._zero_fill = contract.observation.history_fill == "zeros"
        self._vector = np.zeros((1, contract.observation.dim), np.float32)
        self._terms: list[_BuiltTerm] = []
        start = 0
        frame_major = contract.observation.layout == "frame_major"
        for term in contract.observation.terms:
            size = term.dim * term.history
            if frame_major:
                history = self._vector.reshape(term.history, -1)[:, start : start + term.dim]
                start += term.dim
            else:
                history = self._vector[0, start : start + size].reshape(term.history, term.dim)
                start += size
            low, high = term.clip or (-np.inf, np.inf)
            self._terms.append(
                _BuiltTerm(self._measure(term), low, high, np.array(term.scale), np.array(term.offset), history)
            )
        self._started = False

    def build(self, state: RobotState, command: np.ndarray, last_action: np.ndarray) -> np.ndarray:
        """Return the observation `(1, D)` float32, in an array that the next call overwrites.

        Args:
            state: the latest sample of the robot.
            command: `(C,)`, the contract's commands one after the other, in their units.
            last_action: `(A,)`, the action of the step before, as the contract defines it; zeros at the start.
        """
        for term in self._terms:
            value = np.clip(term.measure(state, command, last_action), term.low, term.high) * term.scale + term.offset
            if self._started:
                term.history[:-1] = term.history[1:]
            elif not self._zero_fill:
                term.history[:] = value
            term.history[-1] = value
        self._started = True
        return self._vector

    def projected_gravity(self, state: RobotState) -> np.ndarray:
        """Return the unit vector of gravity (3,) in the base frame: (0, 0, -1) when upright."""
        # The last row of R is the world's z axis seen from the IMU.
        return self._mounting @ -_rotation(state.imu_quaternion)[2]

    def angular_velocity(self, state: RobotState) -> np.ndarray:
        """Return the angular velocity (3,) of the base in the base frame, rad/s."""
        return self._mounting @ state.imu_angular_velocity

    def _measure(self, term: Term) -> Callable[[RobotState, np.ndarray, np.ndarray], np.ndarray]:
        if term.needs_estimator:
            raise ContractError(
                f"observation term {term.name!r} needs a state estimator, which the robot does not have; "
                "train with it for the critic only"
            )
        joints = self.order.of(term.joints)
        default = np.array([self._default[name] for name in term.joints])
        known: dict[str, tuple[int, Callable[[RobotState, np.ndarray, np.ndarray], np.ndarray]]] = {
            "angular_velocity": (3, lambda state, command, action: self.angular_velocity(state)),
            "projected_gravity": (3, lambda state, command, action: self.projected_gravity(state)),
            "joint_position_relative": (len(joints), lambda state, c, a: state.joint_position[joints] - default),
            "joint_velocity": (len(joints), lambda state, command, action: state.joint_velocity[joints]),
            "last_action": (self._action_dim, lambda state, command, action: action),
            "command": (self._command_dim, lambda state, command, action: command),
        }
        if term.source not in known:
            raise ContractError(
                f"observation term {term.name!r} is measured as {term.source!r}, which the robot cannot supply; "
                f"it has {', '.join(known)}"
            )
        dim, measure = known[term.source]
        if dim != term.dim:
            raise ContractError(f"observation term {term.name!r} has {term.dim} entries, and its source has {dim}")
        return measure


@dataclass(frozen=True)
class _BuiltTerm:
    measure: Callable[[RobotState, np.ndarray, np.ndarray], np.ndarray]
    low: float
    high: float
    scale: np.ndarray
    offset: np.ndarray
    history: np.ndarray  # (history, dim), a view of the observation vector


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    """Return the rotation matrix (3, 3) of a unit quaternion (w, x, y, z): it turns local vectors into the parent's."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
