"""The scene around a robot: ground, contacts, camera, options and gains."""

import dataclasses
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest

from sim import scene
from sim.errors import UserError
from sim.robots import load_robot, names

MOTOR = """
<mujoco><option iterations="7" gravity="0 0 -3"/><worldbody>{ground}
  <body name="arm" pos="0 0 1"><joint name="hinge" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.02"/></body></worldbody>
  <actuator><motor name="m" joint="hinge" gear="4" ctrlrange="-2 2"/></actuator>
</mujoco>"""


def write(folder: Path, ground: str = "") -> str:
    path = folder / "mine.xml"
    path.write_text(MOTOR.format(ground=ground))
    return str(path)


def home(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    return data


@pytest.mark.parametrize("name", names())
def test_every_bundled_robot_gets_ground_camera_and_options(name):
    robot = load_robot(name)
    model = scene.build(robot, timestep=0.004)
    floor = model.geom("floor")
    assert floor.type[0] == mujoco.mjtGeom.mjGEOM_PLANE
    assert floor.bodyid[0] == 0
    camera = model.camera("track")
    assert model.body(camera.bodyid[0]).name == robot.base
    assert camera.mode[0] == mujoco.mjtCamLight.mjCAMLIGHT_TRACK
    assert model.nlight > 0
    assert (model.vis.global_.offwidth, model.vis.global_.offheight) == (1280, 720)
    assert model.opt.timestep == 0.004
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert model.opt.disableflags == mujoco.mjtDisableBit.mjDSBL_AUTORESET
    assert scene.build(robot, timestep=0.004, floor=False).ngeom == model.ngeom - 1


@pytest.mark.parametrize("name", names())
def test_camera_looks_at_the_robot_from_above(name):
    model = scene.build(load_robot(name), timestep=0.004)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = model.camera("track").id
    position, rotation = data.cam_xpos[camera], data.cam_xmat[camera].reshape(3, 3)
    towards = model.stat.center - position
    # A camera looks along its -z axis, with y up in the picture.
    assert -rotation[:, 2] @ towards / np.linalg.norm(towards) == pytest.approx(1.0, abs=1e-4)
    assert rotation[2, 1] > 0.9
    assert rotation[2, 0] == pytest.approx(0.0, abs=1e-9)
    assert position[2] > 0.0


def test_a_diverged_state_is_left_as_it_is():
    model = scene.build(load_robot("go2"), timestep=0.005)
    data = home(model)
    data.qvel[0] = np.nan
    mujoco.mj_step(model, data)
    assert np.isnan(data.qpos).any()
    assert data.time > 0.0


@pytest.mark.parametrize("name", ["go2", "g1"])
def test_robot_does_not_collide_with_itself_but_every_collision_shape_meets_the_ground(name):
    model = scene.build(load_robot(name), timestep=0.005)
    data = mujoco.MjData(model)
    generator = np.random.default_rng(0)
    limited = model.jnt_limited.astype(bool)
    for _ in range(50):
        data.qpos[:3] = [0.0, 0.0, 10.0]
        data.qpos[model.jnt_qposadr[limited]] = generator.uniform(*model.jnt_range[limited].T)
        mujoco.mj_forward(model, data)
        assert data.ncon == 0
    data.qpos[2] = -10.0
    mujoco.mj_forward(model, data)
    met = {int(g) for contact in data.contact[: data.ncon] for g in contact.geom} - {model.geom("floor").id}
    named = {g for g in range(model.ngeom) if model.geom(g).name} - {model.geom("floor").id}
    assert met == named  # the shapes without a name are looks


@pytest.mark.parametrize("foot", ["FR_foot", "FL_foot", "RR_foot", "RL_foot"])
def test_go2_foot_sensor_feels_its_own_foot(foot):
    robot = load_robot("go2")
    model = scene.build(robot, timestep=0.005)
    data = home(model)
    for other in robot.feet:
        data.joint(other.replace("foot", "calf_joint")).qpos[0] = -1.8 if other == foot else -2.6
    data.qpos[2] = robot.base_height - 0.002
    mujoco.mj_forward(model, data)
    assert data.sensor(f"{foot}_contact").data[0] > 0.0
    assert [data.sensor(f"{other}_contact").data[0] for other in robot.feet if other != foot] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("foot", ["left_foot", "right_foot"])
def test_g1_foot_sensor_feels_all_of_its_own_foot(foot):
    robot = load_robot("g1")
    model = scene.build(robot, timestep=0.005)
    data = home(model)
    other = next(f for f in robot.feet if f != foot)
    data.joint(other.replace("foot", "knee_joint")).qpos[0] = 1.5
    data.qpos[2] = robot.base_height - 0.003
    mujoco.mj_forward(model, data)
    assert data.ncon == 4
    forces = np.zeros((4, 6))
    for contact, force in enumerate(forces):
        mujoco.mj_contactForce(model, data, contact, force)
    assert (forces[:, 0] > 0.0).all()
    assert data.sensor(f"{foot}_contact").data[0] == pytest.approx(forces[:, 0].sum())
    assert data.sensor(f"{other}_contact").data[0] == 0.0


@pytest.mark.parametrize("name", ["go2", "g1"])
def test_imu_reads_gravity_and_the_turning_rate(name):
    model = scene.build(load_robot(name), timestep=0.005, floor=False)
    data = home(model)
    mujoco.mju_axisAngle2Quat(data.qpos[3:7], np.array([0.0, 0.0, 1.0]), 0.7)
    data.qvel[3:6] = [0.1, 0.2, 0.3]
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.sensor("imu_quat").data, data.qpos[3:7], atol=1e-12)
    np.testing.assert_allclose(data.sensor("imu_gyro").data, [0.1, 0.2, 0.3], atol=1e-12)


def test_what_the_file_brings_is_kept(tmp_path):
    path = write(tmp_path, '<geom type="plane" size="1 1 1" pos="0 0 -1"/><camera name="track" pos="0 -3 1"/><light/>')
    model = scene.build(load_robot(path), timestep=0.004)
    assert model.ngeom == 2
    assert model.camera("track").bodyid[0] == 0
    assert model.nlight == 1
    assert model.opt.iterations == 7
    assert model.opt.gravity[2] == -3.0


def test_gains_of_servos_are_replaced():
    robot = load_robot("go2")
    model = scene.build(robot, timestep=0.005, kp=25.0, kd=[0.1 * i for i in range(12)])
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], 25.0)
    np.testing.assert_allclose(model.actuator_biasprm[:, 1], -25.0)
    np.testing.assert_allclose(model.actuator_biasprm[:, 2], [-0.1 * i for i in range(12)])
    unchanged = scene.build(robot, timestep=0.005, kp=25.0)
    np.testing.assert_allclose(unchanged.actuator_biasprm[:, 2], [-kd for kd in robot.kd])


def test_a_motor_becomes_a_servo_with_the_same_effort(tmp_path):
    robot = load_robot(write(tmp_path))
    assert robot.effort == (8.0,)
    model = scene.build(robot, timestep=0.004, kp=30.0, kd=2.0)
    data = mujoco.MjData(model)
    data.qpos[0], data.qvel[0], data.ctrl[0] = 0.2, 0.5, 0.4
    mujoco.mj_forward(model, data)
    assert data.qfrc_actuator[0] == pytest.approx(30.0 * (0.4 - 0.2) - 2.0 * 0.5)
    data.ctrl[0] = 3.0  # beyond the motor's control range: a position, no longer an effort
    mujoco.mj_forward(model, data)
    assert data.qfrc_actuator[0] == pytest.approx(8.0)
    assert scene.build(robot, timestep=0.004).actuator_gear[0, 0] == 4.0


def test_mistakes_in_the_options_are_named(tmp_path):
    robot = load_robot("go2")
    with pytest.raises(UserError, match="timestep must be positive"):
        scene.build(robot, timestep=0.0)
    with pytest.raises(UserError, match="kp has 3 values for 12 joints"):
        scene.build(robot, timestep=0.005, kp=[1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="kd must be finite and not negative"):
        scene.build(robot, timestep=0.005, kd=-1.0)
    with pytest.raises(UserError, match="no robot file"):
        scene.build(dataclasses.replace(robot, path=str(tmp_path / "gone.xml")), timestep=0.005)


@pytest.mark.parametrize("name", ["half_cheetah", "humanoid", "ant"])
def test_a_complete_scene_is_loaded_unchanged_but_for_the_silent_reset(name):
    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / f"{name}.xml"
    ours, plain = scene.from_file(path), mujoco.MjModel.from_xml_path(str(path))
    assert ours.opt.disableflags == plain.opt.disableflags | mujoco.mjtDisableBit.mjDSBL_AUTORESET
    ours.opt.disableflags = plain.opt.disableflags
    binaries = [np.zeros(mujoco.mj_sizeModel(m), dtype=np.uint8) for m in (ours, plain)]
    for model, binary in zip((ours, plain), binaries, strict=True):
        mujoco.mj_saveModel(model, None, binary)
    np.testing.assert_array_equal(binaries[0], binaries[1])


def test_what_the_compiler_says_goes_to_the_log_and_nowhere_else(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
    with caplog.at_level("INFO", logger="sim.model_file"):
        scene.from_file(path)
    assert "settotalmass" in caplog.text
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
