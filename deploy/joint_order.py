"""The one place where policy order and motor order meet."""

import numpy as np

from deploy.contract import Contract
from deploy.errors import ContractError
from deploy.robot_io import RobotProfile


class JointOrder:
    """Where each joint of the policy, and each one it leaves alone, is among the robot's motors, by name.

    `policy` (A,) and `held` (H,) index an array in motor order; together they are each motor once.

    Raises:
        ContractError: the joints of the contract are not exactly those of the robot.
    """

    def __init__(self, contract: Contract, profile: RobotProfile) -> None:
        policy = contract.action.joints
        held = tuple(joint.name for joint in contract.robot.uncontrolled)
        place = {name: i for i, name in enumerate(profile.joints)}
        if len(place) != len(profile.joints):
            raise ContractError(f"robot {profile.name!r} lists a joint twice")
        if missing := [name for name in (*policy, *held) if name not in place]:
            raise ContractError(f"robot {profile.name!r} has no joint {', '.join(missing)}, which the policy needs")
        if extra := [name for name in profile.joints if name not in policy and name not in held]:
            raise ContractError(f"the policy says nothing of joint {', '.join(extra)} of robot {profile.name!r}")
        self._place = place
        self.policy = self.of(policy)
        self.held = self.of(held)

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """Return the motor index of each named joint."""
        return np.array([self._place[name] for name in names], dtype=np.intp)
