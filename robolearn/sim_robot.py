"""A simulated robot behind the controller's seam: MuJoCo, stepped in wall-clock time in the same process."""

import math
from collections import deque
from dataclasses import dataclass, fields

import mujoco
import numpy as np

from deploy.clock import Clock, MonotonicClock
from deploy.contract import Contract
from deploy.robot_io import JointCommand, ReadStatus, RobotProfile, RobotState
from robolearn.environments import GYMNASIUM
from sim.errors import UserError
from sim.robot import Robot, joint_actuators
from tasks.registry import make_task
from tasks.task import RobotTask

DAMPING_TIME_S = 0.1
"""Damping of a motor that is let go, as a share of its servo's stiffness, s: kd = 0.1 s * kp."""


@dataclass(frozen=True, kw_only=True)
class Imperfections:
    """What lies between the simulated robot and the controller. Noise is uniform, given by its half-width."""

    action_delay_s: float = 0.0
    """Time between a command and its effect, s; rounded to physics steps."""
    observation_delay_s: float = 0.0
    """Age of what is measured, s; rounded to physics steps."""
    joint_position_noise: float = 0.0
    """rad"""
    joint_velocity_noise: float = 0.0
    """rad/s"""
    angular_velocity_noise: float = 0.0
    """rad/s, of the IMU"""
    orientation_noise: float = 0.0
    """rad, of a rotation about each axis of the IMU"""
    seed: int = 0
    """Decides the noise."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < math.inf:
                raise UserError(f"{field.name} must be finite and not negative, not {getattr(self, field.name)}")


class SimRobot:
    """The robot of a task on flat ground, as `deploy.robot_io.RobotIO`; motors are in the order of the robot's joints.

    Physics begins with the first `read`, and every call steps it up to the clock's present time; a command holds until
    the next one. Until the first, the robot stands: its servos hold the default pose. What is read is what a real robot
    reports (encoders, and the model's gyroscope and orientation sensor at the IMU), but for the true linear velocity,
    which only the report of a run reads.
    """

    def __init__(
        self, contract: Contract, *, clock: Clock | None = None, imperfections: Imperfections | None = None
    ) -> None:
        """Stand the robot of a policy's task on the ground.

        Raises:
            UserError: there is no such task, it has no robot, or the robot's IMU lacks an orientation sensor.
        """
        task = contract.provenance.task
        if contract.provenance.environments == GYMNASIUM:
            raise UserError(
                f"the policy was trained in Gymnasium's {task}; the simulated robot is that of a task of ours"
            )
        made = make_task(task)
        if not isinstance(made, RobotTask):
            raise UserError(f"task {task!r} has no robot that a controller could drive")
        self.robot: Robot = made.description
        self.model = made.model()
        self.data = mujoco.MjData(self.model)
        self.profile = RobotProfile(self.robot.name, self.robot.joints, self.robot.imu_site or "")
        self._clock = clock or MonotonicClock()
        self._imperfections = imperfections or Imperfections()
        self._generator = np.random.default_rng(self._imperfections.seed)
        self._sensed = mujoco.MjData(self.model)  # where measurements are computed without touching the physics
        joints = [self.model.joint(name) for name in self.robot.joints]
        self._qpos = np.array([joint.qposadr[0] for joint in joints])
        self._dofs = np.array([joint.dofadr[0] for joint in joints])
        by_joint = joint_actuators(self.model)
        self._actuators = np.array([by_joint[joint.id] for joint in joints])
        self._gear = self.model.actuator_gear[self._actuators, 0].copy()
        self._base = self.model.body(self.robot.base).id
        self._imu = _imu_sensors(self.model, self.robot)
        free = int(self.model.body_jntadr[self._base])
        self._floating = free >= 0 and int(self.model.jnt_type[free]) == int(mujoco.mjtJoint.mjJNT_FREE)
        self._pending: deque[tuple[int, JointCommand]] = deque()
        self._start_ns: int | None = None
        self._steps = 0
        pose = self.model.qpos0.copy()
        pose[self._qpos] = self.robot.default_position
        if self._floating:
            pose[self.model.jnt_qposadr[free] + 2] = self.robot.base_height
        self.place(pose, np.zeros(self.model.nv))

    def place(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the robot, before its physics begins, in a state (nq,), (nv,) of the model; quaternions (w, x, y, z)."""
        if self._start_ns is not None:
            raise RuntimeError("the robot is already moving")
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.data.ctrl[self._actuators] = self.robot.default_position
        delay = round(self._imperfections.observation_delay_s / self.model.opt.timestep)
        self._history: deque[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = deque(maxlen=delay + 1)
        self._remember()

    def open(self) -> None:
        """Nothing: the robot is here."""

    def read(self, out: RobotState) -> ReadStatus:
        """Fill `out` with the latest state."""
        if self._start_ns is None:
            self._start_ns = self._clock.now_ns()
        now = self._advance()
        sequence, qpos, qvel, torque = self._history[0]
        sensed, noise = self._sensed, self._imperfections
        sensed.qpos[:], sensed.qvel[:] = qpos, qvel
        # The four stages that sensors of position and velocity need, and no solver.
        mujoco.mj_fwdPosition(self.model, sensed)
        mujoco.mj_sensorPos(self.model, sensed)
        mujoco.mj_fwdVelocity(self.model, sensed)
        mujoco.mj_sensorVel(self.model, sensed)
        out.joint_position[:] = qpos[self._qpos] + self._noise(noise.joint_position_noise, len(self._qpos))
        out.joint_velocity[:] = qvel[self._dofs] + self._noise(noise.joint_velocity_noise, len(self._dofs))
        out.joint_torque[:] = torque
        self._read_imu(out)
        out.linear_velocity[:] = self._linear_velocity() if self._floating else math.nan
        return ReadStatus(sequence, now - sequence * self.model.opt.timestep)

    def write(self, command: JointCommand) -> None:
        """Let every motor follow a new command, from the physics step nearest to now (plus the delay) on."""
        self._advance()
        copy = JointCommand(*(getattr(command, field.name).copy() for field in fields(command)))
        self._pending.append((self._clock.now_ns() + round(self._imperfections.action_delay_s * 1e9), copy))

    def damp(self) -> None:
        """Let the motors only resist motion, from now on."""
        self._advance()
        self._pending.clear()
        command = JointCommand.zero(len(self._actuators))
        command.kd[:] = DAMPING_TIME_S * np.array(self.robot.kp)
        self._obey(command)

    def close(self) -> None:
        """Damp."""
        self.damp()

    def _advance(self) -> float:
        """Step the physics up to the present; return the time since it began, s."""
        if self._start_ns is None:
            return 0.0
        timestep, now = self.model.opt.timestep, (self._clock.now_ns() - self._start_ns) * 1e-9
        # A step is due at its end; a millionth of a step allows for a clock of whole nanoseconds.
        while (self._steps + 1) * timestep <= now + 1e-6 * timestep:
            middle = self._start_ns + (self._steps + 0.5) * timestep * 1e9
            while self._pending and self._pending[0][0] <= middle:
                self._obey(self._pending.popleft()[1])
            mujoco.mj_step(self.model, self.data)
            self._steps += 1
            self._remember()
        return now

    def _remember(self) -> None:
        torque = self.data.qfrc_actuator[self._dofs]
        self._history.append((self._steps, self.data.qpos.copy(), self.data.qvel.copy(), torque))

    def _obey(self, command: JointCommand) -> None:
        """Write the motors' law into the actuators: gain * control + bias[0] + bias[1] * length + bias[2] * velocity.

        An actuator's length, velocity and force are the joint's through its gear.
        """
        model, gear = self.model, self._gear
        model.actuator_gainprm[self._actuators, 0] = command.kp / gear
        model.actuator_biastype[self._actuators] = int(mujoco.mjtBias.mjBIAS_AFFINE)
        model.actuator_biasprm[self._actuators, 0] = (command.torque + command.kd * command.velocity) / gear
        model.actuator_biasprm[self._actuators, 1] = -command.kp / gear**2
        model.actuator_biasprm[self._actuators, 2] = -command.kd / gear**2
        self.data.ctrl[self._actuators] = command.position

    def _read_imu(self, out: RobotState) -> None:
        noise = self._imperfections
        if self._imu is None:
            velocity = np.zeros(6)
            body = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(self.model, self._sensed, body, self._base, velocity, 1)
            quaternion, turning = self._sensed.xquat[self._base].copy(), velocity[:3]
        else:
            orientation, gyro = self._imu
            quaternion, turning = self._sensed.sensordata[orientation].copy(), self._sensed.sensordata[gyro]
        if noise.orientation_noise:
            mujoco.mju_quatIntegrate(quaternion, self._noise(noise.orientation_noise, 3), 1.0)
        out.imu_quaternion[:] = quaternion
        out.imu_angular_velocity[:] = turning + self._noise(noise.angular_velocity_noise, 3)

    def _linear_velocity(self) -> np.ndarray:
        """Return the present velocity (3,) of the base in the base frame, m/s."""
        joint = int(self.model.body_jntadr[self._base])
        place, dof = int(self.model.jnt_qposadr[joint]), int(self.model.jnt_dofadr[joint])
        inverse, velocity = np.zeros(4), np.zeros(3)
        mujoco.mju_negQuat(inverse, self.data.qpos[place + 3 : place + 7])
        mujoco.mju_rotVecQuat(velocity, self.data.qvel[dof : dof + 3], inverse)
        return velocity

    def _noise(self, half_width: float, size: int) -> np.ndarray:
        return self._generator.uniform(-half_width, half_width, size) if half_width else np.zeros(size)


def _imu_sensors(model: mujoco.MjModel, robot: Robot) -> tuple[slice, slice] | None:
    """Return where in ``sensordata`` the IMU's orientation and angular velocity are; None for a robot without one."""
    if robot.imu_site is None:
        return None
    site = model.site(robot.imu_site).id
    found = {}
    for kind in (mujoco.mjtSensor.mjSENS_FRAMEQUAT, mujoco.mjtSensor.mjSENS_GYRO):
        for i in np.flatnonzero((model.sensor_type == int(kind)) & (model.sensor_objid == site)):
            if int(model.sensor_objtype[i]) == int(mujoco.mjtObj.mjOBJ_SITE) and model.sensor_refid[i] < 0:
                start = int(model.sensor_adr[i])
                found.setdefault(kind, slice(start, start + int(model.sensor_dim[i])))
    if mujoco.mjtSensor.mjSENS_FRAMEQUAT not in found:
        raise UserError(f"{robot.path}: the IMU at site {robot.imu_site!r} needs a framequat sensor of that site")
    return found[mujoco.mjtSensor.mjSENS_FRAMEQUAT], found[mujoco.mjtSensor.mjSENS_GYRO]
