"""The quantities of one robot in N worlds that observations and rewards are written in."""

from collections.abc import Callable
from typing import Any

import mujoco
import torch

from sim import quaternion
from sim.errors import unknown
from sim.mirror import Mirror, partners
from sim.robot import Robot, joint_actuators
from sim.simulation import Simulation


class per_step:
    """A property computed at most once for each state of the simulation."""

    def __init__(self, compute: Callable[[Any], torch.Tensor]):
        self._compute = compute
        self._key = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    def __get__(self, view: Any, owner: type | None = None) -> torch.Tensor:
        version, value = view.__dict__.get(self._key, (None, None))
        if version != view.sim.version:
            value = self._compute(view)
            view.__dict__[self._key] = (view.sim.version, value)
        return value


class RobotView:
    """Reads one robot in every world; joints are in the order of ``Robot.joints``.

    Velocities and angular velocities of the base are in the base frame; quaternions are (w, x, y, z).
    """

    def __init__(self, sim: Simulation, robot: Robot):
        model = sim.model
        self.sim, self.robot = sim, robot
        joints = [sim.id_of("joint", name) for name in robot.joints]
        self.position_index = _span([int(model.jnt_qposadr[j]) for j in joints])
        """Where the joints are in ``qpos``."""
        self.velocity_index = _span([int(model.jnt_dofadr[j]) for j in joints])
        """Where the joints are in ``qvel``."""
        driven = joint_actuators(model)
        for name, joint in zip(robot.joints, joints, strict=True):
            if joint not in driven:
                raise unknown("actuated joint", name, [model.joint(j).name for j in driven])
        self.actuators = _span([driven[j] for j in joints])
        """Where the joints' actuators are in ``ctrl``."""
        self.base = sim.id_of("body", robot.base)
        """Body id of the base."""
        start = int(model.body_jntadr[self.base])
        self.floating = start >= 0 and int(model.jnt_type[start]) == int(mujoco.mjtJoint.mjJNT_FREE)
        """Whether the base moves freely."""
        if self.floating:
            self._base_qpos, self._base_qvel = int(model.jnt_qposadr[start]), int(model.jnt_dofadr[start])
        self.default_position = torch.tensor(robot.default_position, dtype=torch.float64, device=sim.device)
        """(J,) joint positions of the default pose, rad or m."""
        self.joint_range = torch.tensor(model.jnt_range[joints], device=sim.device)
        """(J, 2) lower and upper joint limits, rad or m."""
        self.feet = [sim.id_of("site", name) for name in robot.feet]
        """Site ids of the feet."""

    @per_step
    def joint_position(self) -> torch.Tensor:
        """(N, J) joint positions, rad or m."""
        return self.sim.qpos[:, self.position_index]

    @per_step
    def joint_velocity(self) -> torch.Tensor:
        """(N, J) joint velocities, rad/s or m/s."""
        return self.sim.qvel[:, self.velocity_index]

    @per_step
    def base_position(self) -> torch.Tensor:
        """(N, 3) position of the base in the world, m."""
        return self.sim.qpos[:, self._base_qpos : self._base_qpos + 3]

    @per_step
    def base_quaternion(self) -> torch.Tensor:
        """(N, 4) orientation of the base, w, x, y, z."""
        return self.sim.qpos[:, self._base_qpos + 3 : self._base_qpos + 7]

    @per_step
    def linear_velocity(self) -> torch.Tensor:
        """(N, 3) velocity of the base in the base frame, m/s."""
        return quaternion.rotate_inverse(self.base_quaternion, self.sim.qvel[:, self._base_qvel : self._base_qvel + 3])

    @per_step
    def angular_velocity(self) -> torch.Tensor:
        """(N, 3) angular velocity of the base in the base frame, rad/s (MuJoCo keeps a free joint's in that frame)."""
        return self.sim.qvel[:, self._base_qvel + 3 : self._base_qvel + 6]

    @per_step
    def projected_gravity(self) -> torch.Tensor:
        """(N, 3) direction of gravity in the base frame, unit length; (0, 0, -1) upright."""
        return quaternion.gravity_in_body(self.base_quaternion)

    @per_step
    def joint_torque(self) -> torch.Tensor:
        """(N, J) torque or force the actuators put on the joints, N m or N, at the last physics step."""
        return self.sim.bind("qfrc_actuator")[:, self.velocity_index]

    @per_step
    def foot_contact(self) -> torch.Tensor:
        """(N, F) bool: the foot presses on something, at the last physics step."""
        return torch.cat([self.sim.sensor(f"{foot}_contact") for foot in self.robot.feet], 1) > 0.0

    @per_step
    def foot_position(self) -> torch.Tensor:
        """(N, F, 3) position of the feet in the world, m, at the last physics step."""
        return self.sim.bind("site_xpos")[:, self.feet]

    def joint_mirror(self) -> Mirror:
        """Return the left-right reflection of joint quantities (N, J).

        An angle about the lateral axis keeps its sign in the mirror, one about the others changes it. The axes are
        read in the model's reference pose.
        """
        data = mujoco.MjData(self.sim.model)
        mujoco.mj_kinematics(self.sim.model, data)
        axes = torch.from_numpy(data.xaxis[[self.sim.model.joint(name).id for name in self.robot.joints]])
        index = torch.tensor(partners(self.robot.joints))
        # A pseudo-vector's image in the x-z plane is (-x, y, -z).
        image = axes * torch.tensor([-1.0, 1.0, -1.0])
        sign = (image * axes[index]).sum(1).sign()
        return Mirror(index, sign.float())

    def foot_mirror(self) -> Mirror:
        """Return the left-right reflection of one number for each foot (N, F)."""
        index = torch.tensor(partners(self.robot.feet))
        return Mirror(index, torch.ones(len(index)))


def _span(index: list[int]) -> slice | torch.Tensor:
    """Return a slice where the indices are consecutive: a view then costs nothing."""
    if index and index == list(range(index[0], index[0] + len(index))):
        return slice(index[0], index[0] + len(index))
    return torch.tensor(index)
