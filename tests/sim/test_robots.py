"""The bundled robots against the published figures in figures/*.json.

The figures are those of the manufacturers' published descriptions (MuJoCo units; quaternions w, x, y, z).
"""

import json
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv

from sim import robots, scene
from sim.robot import Robot
from sim.robots import load_robot

FIGURES = {name: json.loads((Path(__file__).parent / "figures" / f"{name}.json").read_text())
           for name in ("go2", "g1", "panda")}  # fmt: skip
BODIES = [pytest.param(name, body, id=f"{name}-{body['name']}") for name in FIGURES for body in FIGURES[name]["bodies"]]
JOINTS = [pytest.param(name, joint, id=f"{name}-{joint['name']}")
          for name in FIGURES for body in FIGURES[name]["bodies"] for joint in body["joints"]]  # fmt: skip


@pytest.fixture(scope="module")
def models() -> dict[str, mujoco.MjModel]:
    return {name: mujoco.MjModel.from_xml_path(load_robot(name).path) for name in robots.names()}


def rotation(quaternion) -> np.ndarray:
    q = np.array(quaternion, dtype=float)
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, q / np.linalg.norm(q))
    return matrix.reshape(3, 3)


def tensor(body: dict) -> np.ndarray:
    """The published (3, 3) inertia about the centre of mass, in the body's axes."""
    if "inertia_xx_yy_zz_xy_xz_yz" in body:
        xx, yy, zz, xy, xz, yz = body["inertia_xx_yy_zz_xy_xz_yz"]
        return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    r = rotation(body.get("inertia_quat", [1, 0, 0, 0]))
    return r @ np.diag(body["inertia"]) @ r.T


def compiled_tensor(model: mujoco.MjModel, body: int) -> np.ndarray:
    r = rotation(model.body_iquat[body])
    return r @ np.diag(model.body_inertia[body]) @ r.T


def published(name: str, joint: dict) -> dict:
    """A joint's figures, with those of its motors where the description gives them by motor."""
    if name != "g1":
        return joint
    motor, count = FIGURES["g1"]["motors"][joint["motor"]], joint["motors"]
    scaled = {key: count * motor[key] for key in ("effort_limit", "armature", "kp", "kd")}
    return joint | scaled | {"velocity_limit": motor["velocity_limit"]}


@pytest.mark.parametrize(("name", "figures"), BODIES)
def test_body_has_the_published_frame_and_mass_distribution(models, name, figures):
    model = models[name]
    body = model.body(figures["name"]).id
    assert model.body(model.body_parentid[body]).name == figures["parent"]
    np.testing.assert_allclose(model.body_pos[body], figures["pos"], atol=1e-12)
    np.testing.assert_allclose(rotation(model.body_quat[body]), rotation(figures.get("quat", [1, 0, 0, 0])), atol=1e-12)
    assert model.body_mass[body] == figures["mass"]
    np.testing.assert_allclose(model.body_ipos[body], figures["com"], atol=1e-12)
    # MuJoCo diagonalises a full tensor to about 1e-9 of its size; a swapped axis or sign is wrong by 1e-3 or more.
    expected = tensor(figures)
    np.testing.assert_allclose(compiled_tensor(model, body), expected, atol=1e-8 * np.trace(expected))


@pytest.mark.parametrize("name", FIGURES)
def test_no_body_is_missing_or_extra(models, name):
    model = models[name]
    assert [model.body(i).name for i in range(1, model.nbody)] == [b["name"] for b in FIGURES[name]["bodies"]]


@pytest.mark.parametrize(("name", "figures"), JOINTS)
def test_joint_has_the_published_axis_limits_and_motor(models, name, figures):
    model, robot, figures = models[name], load_robot(name), published(name, figures)
    joint = model.joint(figures["name"])
    dof = joint.dofadr[0]
    kind = {"hinge": mujoco.mjtJoint.mjJNT_HINGE, "slide": mujoco.mjtJoint.mjJNT_SLIDE}[figures["type"]]
    assert joint.type[0] == kind
    assert joint.axis.tolist() == figures["axis"]
    assert joint.range.tolist() == figures["range"]
    assert model.dof_armature[dof] == pytest.approx(figures.get("armature", 0.0), rel=1e-9)
    assert model.dof_damping[dof] == figures.get("damping", 0.0)
    assert model.dof_frictionloss[dof] == figures.get("frictionloss", 0.0)
    if "effort_limit" in figures:
        i = robot.joints.index(figures["name"])
        effort = figures["effort_limit"]
        assert robot.effort[i] == effort
        assert model.jnt_actfrcrange[joint.id].tolist() == [-effort, effort]
        assert robot.velocity_limit[i] == figures.get("velocity_limit", math.inf)
    if "kp" in figures:
        i = robot.joints.index(figures["name"])
        assert (robot.kp[i], robot.kd[i]) == pytest.approx((figures["kp"], figures["kd"]), rel=1e-4)


@pytest.mark.parametrize(("name", "total"), [("go2", 15.206408), ("g1", 33.341142), ("panda", 17.451901)])
def test_total_mass(models, name, total):
    assert models[name].body_mass.sum() == pytest.approx(total, abs=1e-6)
    assert sum(b["mass"] for b in FIGURES[name]["bodies"]) == pytest.approx(total, abs=1e-6)


def test_go2_joints_are_in_motor_order_and_its_pose_and_parts_are_the_published_ones(models):
    robot, figures = load_robot("go2"), FIGURES["go2"]
    assert robot.joints == tuple(figures["motor_order"])
    home = figures["home"]
    assert robot.default_position == (home["hip"], home["thigh"], home["calf"]) * 4
    assert (robot.base, robot.imu_site) == ("base", "imu")
    assert robot.feet == ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
    np.testing.assert_allclose(models["go2"].site("imu").pos, figures["imu_site_pos"])
    for body in figures["bodies"]:
        if "foot" in body:
            foot = models["go2"].geom(body["name"].replace("calf", "foot"))
            np.testing.assert_allclose(foot.pos, body["foot"]["pos"])
            assert foot.size[0] == body["foot"]["radius"]
            assert foot.friction.tolist() == body["foot"]["friction"]


def test_g1_home_is_the_published_one():
    robot, home = load_robot("g1"), FIGURES["g1"]["home"]
    for joint, position in zip(robot.joints, robot.default_position, strict=True):
        name = joint.removesuffix("_joint")
        expected = home.get(name, home.get(name.removeprefix("left_").removeprefix("right_"), 0.0))
        assert position == expected, joint
    assert robot.base_height == pytest.approx(0.76, abs=0.01)
    assert (robot.base, robot.feet) == ("pelvis", ("left_foot", "right_foot"))


def test_panda_home_and_gripper(models):
    robot, model = load_robot("panda"), models["panda"]
    home = FIGURES["panda"]["home"]
    assert robot.default_position == tuple(home[:8])
    np.testing.assert_allclose(model.key("home").qpos, home)
    assert robot.joints[-1] == "finger_joint1"
    assert robot.effort[-1] == FIGURES["panda"]["gripper_force_limit"]
    assert (robot.base, robot.base_height) == ("link0", 0.0)


@pytest.mark.parametrize("name", ["go2", "g1"])
def test_feet_just_touch_the_ground_in_the_default_pose(models, name):
    robot, model = load_robot(name), models[name]
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    assert data.body(robot.base).xpos[2] == robot.base_height
    soles = [data.geom_xpos[g, 2] - model.geom_size[g, 0] for g in range(model.ngeom) if "_foot" in model.geom(g).name]
    # The published g1 stance leaves its soles 1 mm from level.
    assert min(soles) == pytest.approx(0.0, abs=5e-4)
    assert max(soles) < 2e-3


@pytest.mark.parametrize("link", ["hip", "thigh", "calf"])
@pytest.mark.parametrize("end", ["F", "R"])
def test_go2_is_its_own_mirror_image(models, link, end):
    model = models["go2"]
    mirror = np.diag([1.0, -1.0, 1.0])
    left, right = model.body(f"{end}L_{link}").id, model.body(f"{end}R_{link}").id
    assert model.body_mass[left] == model.body_mass[right]
    np.testing.assert_allclose(mirror @ model.body_pos[left], model.body_pos[right], atol=1e-12)
    np.testing.assert_allclose(mirror @ model.body_ipos[left], model.body_ipos[right], atol=1e-12)
    # The published quaternions have six digits.
    size = model.body_inertia[left].sum()
    mirrored = mirror @ compiled_tensor(model, left) @ mirror
    np.testing.assert_allclose(mirrored, compiled_tensor(model, right), atol=2e-6 * size)


def test_g1_limbs_are_mirror_images(models):
    model = models["g1"]
    mirror = np.diag([1.0, -1.0, 1.0])
    for left in (b for b in range(model.nbody) if model.body(b).name.startswith("left_")):
        right = model.body(model.body(left).name.replace("left_", "right_")).id
        assert model.body_mass[left] == model.body_mass[right]
        np.testing.assert_allclose(mirror @ model.body_ipos[left], model.body_ipos[right], atol=1e-12)
        # The published left and right knee differ by 9e-5 kg m^2 in xz, 0.4 % of the tensor's trace; the rest by less.
        mirrored = mirror @ compiled_tensor(model, left) @ mirror
        size = model.body_inertia[left].sum()
        np.testing.assert_allclose(mirrored, compiled_tensor(model, right), atol=5e-3 * size)


def hold(robot: Robot, model: mujoco.MjModel, seconds: float) -> mujoco.MjData:
    """Let the servos hold the default pose."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    assert data.ctrl.tolist() == list(robot.default_position)
    while data.time < seconds:
        mujoco.mj_step(model, data)
    return data


def tilt(data: mujoco.MjData, base: str) -> float:
    """Angle between the base's z axis and the vertical, rad."""
    return math.acos(min(1.0, data.body(base).xmat[8]))


def test_go2_stands_on_its_servos():
    robot = load_robot("go2")
    data = hold(robot, scene.build(robot, timestep=0.005), 2.0)
    assert data.body("base").xpos[2] == pytest.approx(robot.base_height, abs=0.05)
    assert tilt(data, "base") < 0.1
    assert np.abs(data.qvel).max() < 0.05
    assert data.ncon == 4


def test_g1_stands_on_servos_stiff_enough_to_balance_it():
    robot = load_robot("g1")
    # An inverted pendulum stands if the ankles together are stiffer than m g h about them. The published gains are
    # softer (they leave balance to a policy); gains that put the two ankles at twice that, equally damped, must do.
    com_height = 0.68
    needed = FIGURES["g1"]["total_mass"] * 9.81 * com_height
    ankle = robot.kp[robot.joints.index("left_ankle_pitch_joint")]
    assert 2.0 * ankle < needed
    stiffer = needed / ankle
    kp = [stiffer * k for k in robot.kp]
    kd = [math.sqrt(stiffer) * k for k in robot.kd]
    data = hold(robot, scene.build(robot, timestep=0.002, kp=kp, kd=kd), 2.0)
    assert data.body("pelvis").xpos[2] == pytest.approx(robot.base_height, abs=0.05)
    assert tilt(data, "pelvis") < 0.1


def test_panda_holds_its_home_pose_and_its_fingers_move_together():
    robot = load_robot("panda")
    model = scene.build(robot, timestep=0.002)
    data = hold(robot, model, 2.0)
    # At rest a servo sags by gravity torque / kp; the arm's largest is about 30 N m over 4500 N m/rad.
    sag = data.qpos[:7] - robot.default_position[:7]
    assert np.abs(sag).max() < 0.01
    np.testing.assert_allclose(sag, -data.qfrc_bias[:7] / robot.kp[:7], atol=1e-4)
    np.testing.assert_allclose(data.qpos[7:], 0.04, atol=1e-4)
    data.ctrl[7] = 0.01
    mujoco.mj_step(model, data, 500)
    np.testing.assert_allclose(data.qpos[7:], 0.01, atol=1e-4)


def test_pendulum_is_gymnasiums():
    robot = load_robot("pendulum")
    model = scene.build(robot, timestep=0.05)
    data = mujoco.MjData(model)
    env = PendulumEnv()
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(50):
        # Below Gymnasium's speed clip of 8 rad/s after one step; the model has none.
        angle, speed, torque = generator.uniform(-3, 3), generator.uniform(-6, 6), generator.uniform(-2, 2)
        env.state = np.array([angle, speed])
        env.step(np.array([torque], dtype=np.float64))
        data.qpos[0], data.qvel[0], data.ctrl[0] = angle, speed, torque
        mujoco.mj_step(model, data)
        np.testing.assert_allclose([data.qpos[0], data.qvel[0]], env.state, atol=1e-9)
    assert robot.effort == (2.0,)


def test_cartpole_has_the_textbook_dynamics():
    robot = load_robot("cartpole")
    model = scene.build(robot, timestep=0.01)
    data = mujoco.MjData(model)
    assert (robot.joints, robot.effort) == (("slider",), (10.0,))
    # A push on the cart with the pole upright: (M + m) x'' + m l th'' = F and (I + m l^2) th'' + m l x'' = 0.
    cart, pole, half, force = 1.0, 0.1, 0.5, 10.0
    inertia = model.body_inertia[model.body("pole").id].max()
    # A rod's, and 13 % for the round ends that reach 4.5 cm beyond it.
    assert inertia == pytest.approx(1.13 * pole * (2 * half) ** 2 / 12, rel=0.01)
    data.ctrl[0] = force
    mujoco.mj_forward(model, data)
    about_hinge = inertia + pole * half**2
    acceleration = force * about_hinge / ((cart + pole) * about_hinge - (pole * half) ** 2)
    assert data.joint("slider").qacc[0] == pytest.approx(acceleration, rel=1e-6)
    assert data.joint("hinge").qacc[0] == pytest.approx(-acceleration * pole * half / about_hinge, rel=1e-6)
    assert not model.jnt_limited[model.joint("hinge").id]
