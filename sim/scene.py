"""Putting a robot on the ground: from a description to the model that a Simulation steps."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from sim.errors import UserError
from sim.model_file import compile_spec, read_spec
from sim.robot import Robot

OFFSCREEN_WIDTH, OFFSCREEN_HEIGHT = 1280, 720
VIEW_DIRECTION = (0.55, -0.78, 0.3)
"""From the robot towards the camera, in the world."""
VIEW_DISTANCE = 1.5
"""Distance of the camera from the robot, as a multiple of the model's extent."""
LIGHT_DISTANCE = 1.6
"""Height of the light above the robot, likewise."""

Gain = float | Sequence[float]


def build(
    robot: Robot,
    *,
    timestep: float,
    floor: bool = True,
    kp: Gain | None = None,
    kd: Gain | None = None,
) -> mujoco.MjModel:
    """Compile the robot together with the ground, a light and a camera that follows it.

    The ground is the plane ``floor`` and the camera is ``track``; a file that brings its own keeps them. The solver is
    left as the file has it; the integrator is implicitfast, which is stable with stiff servos. MuJoCo's silent reset of
    a diverged state is off.

    Args:
        robot: what to put there. If its file has no actuators, position servos with the robot's gains are added.
        timestep: length of a physics step, s.
        floor: whether there is ground.
        kp: servo stiffness, one value or one per joint, N m/rad or N/m; None keeps the robot's. With gains given, a
            plain motor becomes a position servo with the same largest effort.
        kd: servo damping, likewise, N m s/rad or N s/m.

    Raises:
        UserError: the file cannot be compiled, the timestep or a gain is out of range, or the number of gains is not
            that of the joints.
    """
    if not timestep > 0.0:
        raise UserError(f"timestep must be positive, not {timestep} s")
    spec = read_spec(robot.path)
    if not spec.actuators:
        _add_servos(spec, robot)
    if kp is not None or kd is not None:
        _set_gains(spec, robot, _per_joint("kp", kp, robot.kp), _per_joint("kd", kd, robot.kd))
    _add_surroundings(spec, robot, floor)
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return compile_spec(spec, robot.path)


def from_file(path: str | Path) -> mujoco.MjModel:
    """Compile a complete MJCF scene as it is, except that MuJoCo's silent reset of a diverged state is off.

    Raises:
        UserError: no such file, or MuJoCo cannot compile it.
    """
    with warnings.catch_warnings():
        # MuJoCo warns of deprecated attributes; a file that must be taken as it is cannot be mended.
        warnings.simplefilter("ignore", UserWarning)
        model = compile_spec(read_spec(path), path)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return model


def _per_joint(name: str, value: Gain | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if value is None:
        return default
    values = (float(value),) * len(default) if isinstance(value, (int, float)) else tuple(float(v) for v in value)
    if len(values) != len(default):
        raise UserError(f"{name} has {len(values)} values for {len(default)} joints")
    if not all(0.0 <= v < np.inf for v in values):
        raise UserError(f"{name} must be finite and not negative, not {value}")
    return values


def _add_servos(spec: mujoco.MjSpec, robot: Robot) -> None:
    for joint, kp, kd in zip(robot.joints, robot.kp, robot.kd, strict=True):
        servo = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp, kd)


def _set_gains(spec: mujoco.MjSpec, robot: Robot, kp: tuple[float, ...], kd: tuple[float, ...]) -> None:
    by_joint = {a.target: a for a in reversed(spec.actuators) if a.trntype == mujoco.mjtTrn.mjTRN_JOINT}
    for joint, stiffness, damping, effort in zip(robot.joints, kp, kd, robot.effort, strict=True):
        actuator = by_joint[joint]
        if actuator.biastype == mujoco.mjtBias.mjBIAS_NONE:
            # A motor's control range is a range of efforts and would clip the servo's targets, which are positions.
            actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
            actuator.gear = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
            if np.isfinite(effort):
                actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
                actuator.forcerange = [-effort, effort]
        gear = float(actuator.gear[0])
        actuator.set_to_position(stiffness / gear**2, damping / gear**2)


def _add_surroundings(spec: mujoco.MjSpec, robot: Robot, floor: bool) -> None:
    alone = compile_spec(spec, robot.path)
    data = mujoco.MjData(alone)
    mujoco.mj_forward(alone, data)
    base = spec.body(robot.base)

    ground = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    if floor and not any(g.type in ground or g.name == "floor" for g in spec.worldbody.geoms):
        _add_floor(spec)
    if not any(t.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for t in spec.textures):
        _add_sky(spec)
    if not any(camera.name == "track" for camera in spec.cameras):
        _add_camera(base, alone, data)
    if not spec.lights:
        light = base.add_light(name="sun", pos=[0.0, 0.0, LIGHT_DISTANCE * alone.stat.extent], dir=[0.2, 0.3, -1.0])
        light.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
        light.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACK
        light.diffuse = [0.7, 0.7, 0.7]
        # A directional light's shadow reaches this many extents, in depth too: less would cut it off at the ground.
        spec.visual.map.shadowclip = 2.5 * LIGHT_DISTANCE
        spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
        spec.visual.headlight.diffuse = [0.3, 0.3, 0.3]
        spec.visual.headlight.specular = [0.0, 0.0, 0.0]
    frame = getattr(spec.visual, "global")
    frame.offwidth = max(OFFSCREEN_WIDTH, frame.offwidth)
    frame.offheight = max(OFFSCREEN_HEIGHT, frame.offheight)


def _add_floor(spec: mujoco.MjSpec) -> None:
    spec.add_texture(
        name="floor_checker",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.36, 0.4, 0.45],
        rgb2=[0.44, 0.48, 0.53],
        width=256,
        height=256,
    )
    textures = [""] * int(mujoco.mjtTextureRole.mjNTEXROLE)
    textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor_checker"
    spec.add_material(name="floor_checker", textures=textures, texrepeat=[1.0, 1.0], texuniform=True, reflectance=0.0)
    spec.worldbody.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0.0, 0.0, 0.05],
        material="floor_checker",
        contype=1,
        conaffinity=1,
    )


def _add_sky(spec: mujoco.MjSpec) -> None:
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.83, 0.92],
        rgb2=[0.35, 0.45, 0.6],
        width=256,
        height=1536,
    )


def _add_camera(base: mujoco.MjsBody, alone: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Add the camera ``track``: it keeps its direction and its offset from the base in the world."""
    towards = np.array(VIEW_DIRECTION) / np.linalg.norm(VIEW_DIRECTION)
    right = np.cross([0.0, 0.0, 1.0], towards)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(towards, right), towards], axis=1)
    position = alone.stat.center + VIEW_DISTANCE * alone.stat.extent * towards
    body = alone.body(base.name).id
    to_base = data.xmat[body].reshape(3, 3).T
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, (to_base @ rotation).ravel())
    base.add_camera(
        name="track",
        mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK,
        pos=to_base @ (position - data.xpos[body]),
        quat=quaternion,
    )
