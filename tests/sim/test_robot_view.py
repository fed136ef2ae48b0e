"""The robot's quantities and their frames against MuJoCo's own functions."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from sim.robot import Robot
from sim.robot_view import RobotView
from sim.robots import load_robot
from sim.scene import build

ROUNDING: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
"""A few float64 operations on numbers of order 1 to 10."""


def standing(worlds: int, name: str = "go2") -> tuple[MujocoSimulation, RobotView]:
    robot = load_robot(name)
    sim = MujocoSimulation(build(robot, timestep=0.005), worlds)
    sim.qpos[:] = torch.from_numpy(sim.model.key_qpos[0])
    sim.ctrl[:] = torch.from_numpy(sim.model.key_ctrl[0])
    return sim, RobotView(sim, robot)


def tumbling(worlds: int) -> tuple[MujocoSimulation, RobotView]:
    """Return robots in the air with random attitudes, joints and velocities."""
    sim, view = standing(worlds)
    generator = torch.Generator().manual_seed(0)
    quaternions = torch.randn(worlds, 4, generator=generator, dtype=torch.float64)
    sim.qpos[:, 2] = 2.0
    sim.qpos[:, 3:7] = quaternions / quaternions.norm(dim=1, keepdim=True)
    sim.qpos[:, 7:] += 0.3 * torch.randn(worlds, 12, generator=generator, dtype=torch.float64)
    sim.qvel[:] = torch.randn(worlds, sim.model.nv, generator=generator, dtype=torch.float64)
    sim.forward()
    return sim, view


def data_of(sim: MujocoSimulation, world: int) -> mujoco.MjData:
    data = mujoco.MjData(sim.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = sim.qpos[world], sim.qvel[world], sim.ctrl[world]
    mujoco.mj_forward(sim.model, data)
    return data


def test_base_velocities_are_in_the_base_frame():
    sim, view = tumbling(20)
    for world in range(20):
        data = data_of(sim, world)
        # xbody: the body's own frame at its own origin, not at its centre of mass; rotation first, then translation.
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(sim.model, data, mujoco.mjtObj.mjOBJ_XBODY, view.base, velocity, 1)
        velocity = torch.from_numpy(velocity)
        torch.testing.assert_close(view.angular_velocity[world], velocity[:3], **ROUNDING)
        torch.testing.assert_close(view.linear_velocity[world], velocity[3:], **ROUNDING)


def test_gyroscope_and_angular_velocity_agree():
    sim, view = tumbling(5)
    gyro = sim.sensor("imu_gyro")  # its site has the base's orientation
    torch.testing.assert_close(view.angular_velocity, gyro, **ROUNDING)


def test_base_pose_and_gravity():
    sim, view = tumbling(20)
    for world in range(20):
        data = data_of(sim, world)
        rotation = torch.from_numpy(data.xmat[view.base].reshape(3, 3))
        down = rotation.T @ torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
        torch.testing.assert_close(view.projected_gravity[world], down, **ROUNDING)
        torch.testing.assert_close(view.base_position[world], torch.from_numpy(data.xpos[view.base]), **ROUNDING)
        torch.testing.assert_close(view.base_quaternion[world], torch.from_numpy(data.xquat[view.base]), **ROUNDING)


def test_joints_and_feet_are_in_the_robots_order():
    sim, view = tumbling(5)
    for world in range(5):
        data = data_of(sim, world)
        position = [data.joint(name).qpos[0] for name in view.robot.joints]
        velocity = [data.joint(name).qvel[0] for name in view.robot.joints]
        torque = [data.joint(name).qfrc_actuator[0] for name in view.robot.joints]
        feet = np.stack([data.site(name).xpos for name in view.robot.feet])
        assert view.joint_position[world].tolist() == position
        assert view.joint_velocity[world].tolist() == velocity
        torch.testing.assert_close(view.joint_torque[world], torch.tensor(torque, dtype=torch.float64), **ROUNDING)
        torch.testing.assert_close(view.foot_position[world], torch.from_numpy(feet), **ROUNDING)


def test_controls_reach_the_joint_of_their_place():
    sim, view = standing(12)
    still = view.joint_position.clone()
    targets = view.default_position.expand(12, 12) + 0.2 * torch.eye(12, dtype=torch.float64)
    sim.qpos[:, 2] = 2.0
    sim.ctrl[:, view.actuators] = targets
    sim.step(2)
    moved = (view.joint_position - still).abs()
    assert moved.argmax(1).tolist() == list(range(12))


def test_foot_contact_is_force_on_the_foot():
    sim, view = standing(3)
    sim.step(200)
    sim.forward()
    assert view.foot_contact.all()
    weight = sum(float(sim.sensor(f"{foot}_contact")[0, 0]) for foot in view.robot.feet)
    # At rest the feet carry the robot; the touch sensors add up normal forces, and the ground is level.
    assert weight == pytest.approx(float(sim.model.body_mass.sum()) * 9.81, rel=0.01)
    sim.qpos[1, 2] += 0.1
    sim.forward()
    assert view.foot_contact.all(1).tolist() == [True, False, True]
    assert not view.foot_contact[1].any()


def test_quantities_are_computed_once_for_each_state():
    sim, view = standing(2)
    first = view.projected_gravity
    assert view.projected_gravity is first
    sim.qpos[:, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    sim.forward()
    assert view.projected_gravity[0].tolist() == [0.0, 0.0, 1.0]


def test_mirrored_twice_is_the_same_and_mirror_joints_swap_sides():
    _, view = standing(1)
    joints, feet = view.joint_mirror(), view.foot_mirror()
    values = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(joints(joints(values)), values)
    assert torch.equal(feet(feet(values[:, :4])), values[:, :4])
    names = view.robot.joints
    for place, image in enumerate(joints.index.tolist()):
        front, side, part = names[place][0], names[place][1], names[place][2:]
        assert names[image] == front + {"L": "R", "R": "L"}[side] + part
        # Hips swing about the forward axis, thighs and calves about the lateral one.
        assert float(joints.sign[place]) == (-1.0 if "hip" in names[place] else 1.0)


def test_mirrored_joints_put_the_feet_in_mirrored_places():
    sim, view = tumbling(2)
    sim.qpos[:, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    sim.qpos[:, 1] = 0.0
    sim.qpos[1] = sim.qpos[0]
    sim.qpos[1, view.position_index] = view.joint_mirror()(view.joint_position)[0]
    sim.forward()
    reflected = view.foot_position[1, view.foot_mirror().index] * torch.tensor([1.0, -1.0, 1.0])
    torch.testing.assert_close(reflected, view.foot_position[0], **ROUNDING)


def test_a_robot_without_symmetric_names_has_no_mirror():
    _, view = standing(1)
    view.robot = Robot(**{**vars(view.robot), "joints": ("FL_hip_joint", "FR_thigh_joint")})
    with pytest.raises(UserError, match="FL_hip_joint has no mirror image FR_hip_joint"):
        view.joint_mirror()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joints": ("FR_hip", *("FR_thigh_joint",) * 11)}, "unknown joint 'FR_hip'; did you mean 'FR_hip_joint'?"),
        ({"base": "bass"}, "unknown body 'bass'; did you mean 'base'?"),
        ({"feet": ("FR_fot",)}, "unknown site 'FR_fot'; did you mean 'FR_foot'?"),
    ],
)
def test_a_part_the_model_lacks_is_named_with_the_nearest(change: dict, message: str):
    sim, view = standing(1)
    with pytest.raises(UserError) as error:
        RobotView(sim, Robot(**{**vars(view.robot), **change}))
    assert str(error.value) == message


def test_an_actuator_of_a_tendon_is_not_taken_for_a_joints(tmp_path):
    """Tendon 0 and joint 0 have the same number, and the tendon's actuator comes first."""
    path = tmp_path / "cable.xml"
    path.write_text(
        """<mujoco><option><flag autoreset="disable"/></option><worldbody><body name="arm">
        <joint name="elbow" axis="0 1 0"/><geom size="0.1" mass="1"/></body></worldbody>
        <tendon><fixed name="cable"><joint joint="elbow" coef="1"/></fixed></tendon>
        <actuator><motor tendon="cable" ctrlrange="-1 1"/><motor joint="elbow" ctrlrange="-1 1"/></actuator></mujoco>"""
    )
    view = RobotView(MujocoSimulation(mujoco.MjModel.from_xml_path(str(path)), 2, threads=1), load_robot(str(path)))
    assert view.actuators == slice(1, 2)
