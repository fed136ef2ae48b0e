"""The description of a robot that tasks and controllers read: joints in motor order, pose, gains, limits, feet, IMU."""

import math
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from sim.errors import UserError

SERVO_FREQUENCY = 5.0
"""Natural frequency, in Hz, of the critically damped servos given to a file that has no actuators."""

# As integers: a NumPy integer is never `in` a tuple of MuJoCo's enum members.
SINGLE_AXIS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
JOINT_TRANSMISSIONS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))


@dataclass(frozen=True)
class Robot:
    """A robot and the names of its parts; tuples over joints are in the order of ``joints``, the order a policy sees.

    Attributes:
        name: what the user calls it.
        path: the MJCF or URDF file it was read from.
        base: body whose motion is the robot's motion.
        joints: actuated hinge and slide joints, in the order of their actuators.
        default_position: joint positions of the default pose, rad (m for slide joints).
        base_height: height of the base's origin above the ground in the default pose, m.
        kp: servo stiffness at the joint, N m/rad (N/m for slide joints); 0 where the actuator is a plain motor.
        kd: servo damping at the joint, N m s/rad (N s/m for slide joints), passive joint damping not included.
        effort: largest actuator effort at the joint, N m (N for slide joints); infinite where the file sets none.
        velocity_limit: largest joint speed of the motors, rad/s (m/s); infinite where the file sets none.
        feet: names of the sites that carry a touch sensor named ``<foot>_contact``.
        imu_site: name of the site that carries the gyroscope, or None.
    """

    name: str
    path: str
    base: str
    joints: tuple[str, ...]
    default_position: tuple[float, ...]
    base_height: float
    kp: tuple[float, ...]
    kd: tuple[float, ...]
    effort: tuple[float, ...]
    velocity_limit: tuple[float, ...]
    feet: tuple[str, ...] = ()
    imu_site: str | None = None

    @classmethod
    def from_model(cls, name: str, path: str | Path, model: mujoco.MjModel) -> "Robot":
        """Describe the robot in a compiled model.

        The joints are those driven by a joint actuator, in actuator order; a model without any actuator gets all its
        hinge and slide joints, each with a critically damped position servo (``sim.scene.build`` adds it). The default
        pose is the keyframe ``home`` where there is one, else the model's reference pose. The base is the first body
        with a free joint, else the first body of the tree. Feet and IMU come from touch sensors named
        ``<site>_contact`` and from the first gyroscope. MJCF has no place for speed limits: they are read from a custom
        numeric ``velocity_limit`` with one value per joint.

        Raises:
            UserError: the model has no joint to drive, no body, or a driven joint without a name.
        """
        if model.nbody < 2:
            raise UserError(f"{path} holds no robot: it has no body")
        actuators = joint_actuators(model)
        if model.nu and not actuators:
            raise UserError(f"{path}: none of its {model.nu} actuators drives a hinge or slide joint")
        ids = list(actuators) if model.nu else [j for j in range(model.njnt) if int(model.jnt_type[j]) in SINGLE_AXIS]
        if not ids:
            raise UserError(f"{path} has no hinge or slide joint to drive")
        for j in ids:
            if not model.joint(j).name:
                raise UserError(f"{path}: the joint of body {model.body(model.jnt_bodyid[j]).name!r} needs a name")

        home = next((k for k in range(model.nkey) if model.key(k).name == "home"), None)
        qpos = model.qpos0 if home is None else model.key_qpos[home]
        base = _base(model)
        if not model.body(base).name:
            raise UserError(f"{path}: body {base}, the robot's base, needs a name")
        gains = [_servo(model, actuators[j]) if model.nu else _default_servo(model, j) for j in ids]
        return cls(
            name=name,
            path=str(path),
            base=model.body(base).name,
            joints=tuple(model.joint(j).name for j in ids),
            default_position=tuple(float(qpos[model.jnt_qposadr[j]]) for j in ids),
            base_height=_height(model, base, qpos),
            kp=tuple(kp for kp, _ in gains),
            kd=tuple(kd for _, kd in gains),
            effort=tuple(_effort(model, j, actuators.get(j)) for j in ids),
            velocity_limit=_velocity_limit(model, len(ids), path),
            feet=_feet(model),
            imu_site=_imu_site(model),
        )


def joint_actuators(model: mujoco.MjModel) -> dict[int, int]:
    """Map the id of each driven hinge or slide joint to the id of its (first) actuator, in actuator order."""
    driven = {}
    for actuator in range(model.nu):
        joint = int(model.actuator_trnid[actuator, 0])
        if int(model.actuator_trntype[actuator]) in JOINT_TRANSMISSIONS and int(model.jnt_type[joint]) in SINGLE_AXIS:
            driven.setdefault(joint, actuator)
    return driven


def _base(model: mujoco.MjModel) -> int:
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    return int(model.jnt_bodyid[free[0]]) if free.size else 1


def _height(model: mujoco.MjModel, base: int, qpos: np.ndarray) -> float:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return float(data.xpos[base, 2])


def _servo(model: mujoco.MjModel, actuator: int) -> tuple[float, float]:
    """Return the stiffness and damping that the actuator's affine bias gives at the joint, through its gear."""
    gear = float(model.actuator_gear[actuator, 0])
    _, position, velocity = (float(b) for b in model.actuator_biasprm[actuator, :3])
    return abs(position) * gear**2, abs(velocity) * gear**2


def _default_servo(model: mujoco.MjModel, joint: int) -> tuple[float, float]:
    """Return critically damped gains, kp = M w^2 and kd = 2 M w, with M the joint's inertia at the reference pose."""
    omega = 2.0 * math.pi * SERVO_FREQUENCY
    inertia = float(model.dof_M0[model.jnt_dofadr[joint]])
    return inertia * omega**2, 2.0 * inertia * omega


def _effort(model: mujoco.MjModel, joint: int, actuator: int | None) -> float:
    bounds = []
    if model.jnt_actfrclimited[joint]:
        bounds.append(np.abs(model.jnt_actfrcrange[joint]).max())
    if actuator is not None:
        gear = abs(float(model.actuator_gear[actuator, 0]))
        if model.actuator_forcelimited[actuator]:
            bounds.append(gear * np.abs(model.actuator_forcerange[actuator]).max())
        is_motor = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_NONE
        if is_motor and model.actuator_ctrllimited[actuator]:
            gain = abs(float(model.actuator_gainprm[actuator, 0]))
            bounds.append(gear * gain * np.abs(model.actuator_ctrlrange[actuator]).max())
    return float(min(bounds, default=math.inf))


def _velocity_limit(model: mujoco.MjModel, joints: int, path: str | Path) -> tuple[float, ...]:
    numeric = next((n for n in range(model.nnumeric) if model.numeric(n).name == "velocity_limit"), None)
    if numeric is None:
        return (math.inf,) * joints
    limits = model.numeric(numeric).data
    if len(limits) != joints:
        raise UserError(f"{path}: the numeric 'velocity_limit' has {len(limits)} values for {joints} joints")
    return tuple(float(v) for v in limits)


def _feet(model: mujoco.MjModel) -> tuple[str, ...]:
    feet = []
    for sensor in range(model.nsensor):
        if model.sensor_type[sensor] == mujoco.mjtSensor.mjSENS_TOUCH:
            site = model.site(model.sensor_objid[sensor]).name
            if model.sensor(sensor).name == f"{site}_contact":
                feet.append(site)
    return tuple(feet)


def _imu_site(model: mujoco.MjModel) -> str | None:
    gyros = np.flatnonzero(model.sensor_type == mujoco.mjtSensor.mjSENS_GYRO)
    return model.site(model.sensor_objid[gyros[0]]).name if gyros.size else None
