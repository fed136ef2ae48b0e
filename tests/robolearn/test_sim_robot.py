"""The simulated robot keeps the clock's time, obeys the motors' law, and reports what a robot can."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import robolearn
from deploy.contract import Contract
from deploy.controller import run
from deploy.robot_io import JointCommand, RobotState
from deploy.runtime import Policy, read_contract
from robolearn.sim_robot import DAMPING_TIME_S, Imperfections, SimRobot
from sim.errors import UserError
from tasks.velocity import Velocity, VelocityConfig

COMMAND = np.array((0.6, -0.2, 0.4))
QUIET = dict.fromkeys(VelocityConfig().noise, 0.0)


class FakeClock:
    """Time passes only when someone sleeps."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_007

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self.time_ns = max(self.time_ns, deadline_ns)

    def pass_seconds(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)


@pytest.fixture
def contract(go2_onnx: Path) -> Contract:
    return read_contract(go2_onnx)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def robot(contract: Contract, clock: FakeClock) -> SimRobot:
    return SimRobot(contract, clock=clock)


def read(robot: SimRobot) -> RobotState:
    state = RobotState.empty(len(robot.robot.joints))
    robot.read(state)
    return state


def servo(robot: SimRobot, offset: float = 0.0) -> JointCommand:
    """Return the command that holds the default pose, a little off it."""
    command = JointCommand.zero(len(robot.robot.joints))
    command.position[:] = np.array(robot.robot.default_position) + offset
    command.kp[:], command.kd[:] = robot.robot.kp, robot.robot.kd
    return command


def in_process(policy: Policy, steps: int, delay: float, error: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first state (nq,), (nv,) and the joint positions (steps, J) of the task's own environment.

    The actions are off by up to `error`, at random.
    """
    env = robolearn.make("Go2-Velocity-Flat", seed=4, noise=QUIET, push_velocity=0.0, friction=(1.0, 1.0),
                         base_mass=(1.0, 1.0), action_delay_s=delay)  # fmt: skip
    task = env.task
    assert isinstance(task, Velocity)
    qpos, qvel = env.sim.qpos[0].numpy().copy(), env.sim.qvel[0].numpy().copy()
    generator, rows, obs = torch.Generator().manual_seed(1), [], env.obs_buf["policy"]
    obs[:, -3:] = torch.from_numpy(COMMAND)
    for _ in range(steps):
        rows.append(task.robot.joint_position[0].numpy().copy())
        action = torch.from_numpy(policy.act(obs.numpy())[0])
        action += error * (torch.rand(action.shape, generator=generator) * 2 - 1)
        task.command[:], task.command_timer[:] = torch.from_numpy(COMMAND), 1e9
        obs = env.step(action)[0]["policy"]
    return qpos, qvel, np.stack(rows)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
def test_the_closed_loop_equals_the_environment_step_by_step(
    go2_onnx: Path, contract: Contract, clock: FakeClock, delay: float
):
    policy, steps = Policy(go2_onnx), 60
    qpos, qvel, expected = in_process(policy, steps, delay, 0.0)
    robot = SimRobot(contract, clock=clock, imperfections=Imperfections(action_delay_s=delay))
    robot.place(qpos, qvel)
    report = run(policy, robot, lambda time: COMMAND, steps * 0.02, clock=clock)
    assert (report.reason, report.steps, report.overruns) == ("finished", steps, 0)
    # The environment computes targets in float64 and the file in float32: an error of half a unit in the last place of
    # the largest target, 2.8 rad. What the same error does to the environment itself is what it may do here, times ten.
    _, _, disturbed = in_process(policy, steps, delay, 2.0**-23)
    tolerance = 10 * np.abs(disturbed - expected).max()
    assert tolerance < 1e-3
    np.testing.assert_allclose(report.record.joint_position, expected, rtol=0, atol=tolerance)
    assert np.ptp(expected, axis=0).max() > 0.05  # something happened


def test_the_loop_tracks_the_true_velocity_of_the_base(go2_onnx: Path, robot: SimRobot, clock: FakeClock):
    report = run(Policy(go2_onnx), robot, lambda time: COMMAND, 0.2, clock=clock)
    base = robot.model.body("base").id
    velocity = np.zeros(6)
    mujoco.mj_forward(robot.model, robot.data)
    mujoco.mj_objectVelocity(robot.model, robot.data, mujoco.mjtObj.mjOBJ_XBODY, base, velocity, 1)
    state = read(robot)
    np.testing.assert_allclose(state.linear_velocity, velocity[3:], atol=1e-9)
    assert set(report.command_error) == {"linear_velocity_x", "linear_velocity_y", "angular_velocity_z"}


def test_physics_keeps_the_time_of_the_clock(robot: SimRobot, clock: FakeClock):
    clock.pass_seconds(5.0)
    state = RobotState.empty(12)
    assert robot.read(state) == (0, 0.0)  # time begins now
    before = state.joint_position.copy()
    np.testing.assert_array_equal(before, robot.robot.default_position)
    clock.pass_seconds(0.0049)
    assert robot.read(state) == (0, pytest.approx(0.0049))
    np.testing.assert_array_equal(state.joint_position, before)
    clock.pass_seconds(0.0161)
    assert robot.read(state) == (4, pytest.approx(0.001))
    assert robot.data.time == pytest.approx(0.02)
    clock.pass_seconds(59.979)  # a minute at once, without a step lost or gained
    assert robot.read(state).sequence == 12_000


def test_until_the_first_command_it_stands(robot: SimRobot, clock: FakeClock):
    read(robot)
    clock.pass_seconds(2.0)
    state = read(robot)
    assert state.imu_quaternion[0] > 0.99
    assert np.abs(state.joint_position - robot.robot.default_position).max() < 0.3


@pytest.mark.parametrize(("written_at", "delay", "first_step"), [
    (0.0, 0.0, 0), (0.0024, 0.0, 0), (0.0026, 0.0, 1), (0.0, 0.01, 2), (0.0024, 0.01, 2), (0.0, 0.05, 10),
])  # fmt: skip
def test_a_command_takes_effect_at_the_nearest_physics_step(
    contract: Contract, clock: FakeClock, written_at: float, delay: float, first_step: int
):
    robots = [SimRobot(contract, clock=clock, imperfections=Imperfections(action_delay_s=delay)) for _ in range(2)]
    for robot in robots:
        read(robot)
    clock.pass_seconds(written_at)
    robots[0].write(servo(robots[0]))
    robots[1].write(servo(robots[1], offset=0.3))
    for _ in range(20):
        clock.pass_seconds(0.005)
        a, b = (read(robot) for robot in robots)
        if not np.array_equal(a.joint_velocity, b.joint_velocity):
            break
    assert robots[0]._steps == first_step + 1


def test_the_command_array_may_be_used_again(robot: SimRobot, clock: FakeClock):
    read(robot)
    command = servo(robot)
    robot.write(command)
    command.position[:] = np.nan
    clock.pass_seconds(0.01)
    assert np.isfinite(read(robot).joint_position).all()


def test_the_motors_obey_their_law(robot: SimRobot, clock: FakeClock):
    read(robot)
    generator = np.random.default_rng(0)
    command = JointCommand(*(generator.uniform(0.1, 1.0, 12) for _ in range(5)))
    robot.data.qvel[robot._dofs] = generator.uniform(-1, 1, 12)
    q, dq = robot.data.qpos[robot._qpos].copy(), robot.data.qvel[robot._dofs].copy()
    robot.write(command)
    clock.pass_seconds(0.005)
    expected = command.torque + command.kp * (command.position - q) + command.kd * (command.velocity - dq)
    np.testing.assert_allclose(read(robot).joint_torque, expected, rtol=1e-9)
    command.kp[:] = 1e4
    robot.write(command)
    clock.pass_seconds(0.005)
    torque = read(robot).joint_torque  # no motor is stronger than it is
    assert (np.abs(torque) <= np.array(robot.robot.effort) * (1 + 1e-9)).all()
    assert (np.abs(torque) > 0.99 * np.array(robot.robot.effort)).any()


def test_the_law_holds_through_a_gear(contract: Contract, clock: FakeClock, tmp_path: Path):
    (tmp_path / "arm.xml").write_text(
        '<mujoco><worldbody><body name="arm" pos="0 0 1"><joint name="a" axis="0 1 0"/>'
        '<geom size="0.1" pos="0.3 0 0"/></body></worldbody>'
        '<actuator><position joint="a" kp="2" kv="0.1" gear="3"/></actuator></mujoco>'
    )
    (tmp_path / "arm.py").write_text(
        "from dataclasses import dataclass\n"
        "from tasks.task import JointPositionTask, RobotTaskConfig\n"
        "@dataclass(kw_only=True)\n"
        "class Config(RobotTaskConfig):\n"
        f"    robot: str = {str(tmp_path / 'arm.xml')!r}\n"
        "class Arm(JointPositionTask):\n"
        "    Config = Config\n"
    )
    task = f"{tmp_path / 'arm.py'}:Arm"
    robot = SimRobot(replace(contract, provenance=replace(contract.provenance, task=task)), clock=clock)
    assert robot.profile.joints == ("a",)
    state = read(robot)
    np.testing.assert_array_equal(state.imu_quaternion, (1, 0, 0, 0))  # no IMU: that of the base, which is fixed
    assert np.isnan(state.linear_velocity).all()
    command = JointCommand(*(np.array([value]) for value in (0.2, 0.5, 30.0, 0.4, 0.7)))
    robot.write(command)
    clock.pass_seconds(0.005)
    assert read(robot).joint_torque[0] == pytest.approx(0.7 + 30.0 * 0.2 + 0.4 * 0.5)


def test_damping_resists_motion_and_nothing_else(robot: SimRobot, clock: FakeClock):
    read(robot)
    robot.write(servo(robot, offset=0.3))
    clock.pass_seconds(0.1)
    robot.damp()
    velocity = robot.data.qvel[robot._dofs].copy()
    assert np.abs(velocity).max() > 0.1
    clock.pass_seconds(0.005)
    expected = -DAMPING_TIME_S * np.array(robot.robot.kp) * velocity
    np.testing.assert_allclose(read(robot).joint_torque, expected, rtol=1e-9)
    clock.pass_seconds(5.0)
    read(robot)
    assert robot.data.qpos[2] < 0.2  # it has sunk to the ground
    robot.close()


def test_damping_forgets_commands_on_their_way(contract: Contract, clock: FakeClock):
    robot = SimRobot(contract, clock=clock, imperfections=Imperfections(action_delay_s=0.05))
    read(robot)
    robot.write(servo(robot))
    robot.damp()
    clock.pass_seconds(1.0)
    read(robot)
    assert (robot.model.actuator_gainprm[robot._actuators, 0] == 0).all()


def test_an_interrupt_ends_in_damping(go2_onnx: Path, robot: SimRobot, clock: FakeClock):
    def interrupt(time: float) -> None:
        if time >= 0.1:
            os.kill(os.getpid(), signal.SIGINT)

    report = run(Policy(go2_onnx), robot, interrupt, 10.0, clock=clock)
    assert (report.reason, report.fault) == ("stopped by SIGINT", False)
    assert report.steps < 10
    assert (robot.model.actuator_gainprm[robot._actuators, 0] == 0).all()
    assert (robot.model.actuator_biasprm[robot._actuators, 2] < 0).all()


def test_a_fall_ends_in_damping(go2_onnx: Path, robot: SimRobot, clock: FakeClock):
    pose = robot.data.qpos.copy()
    pose[3:7] = (np.cos(0.6), np.sin(0.6), 0.0, 0.0)  # rolled by 1.2 rad
    robot.place(pose, np.zeros(robot.model.nv))
    report = run(Policy(go2_onnx), robot, lambda time: None, 1.0, clock=clock)
    assert report.fault
    assert "tilted by 1.20 rad, more than 1.00 rad" in report.reason
    assert (robot.model.actuator_gainprm[robot._actuators, 0] == 0).all()


def test_delayed_measurements_are_those_of_before(contract: Contract, clock: FakeClock):
    now, late = (SimRobot(contract, clock=clock, imperfections=Imperfections(observation_delay_s=d)) for d in (0, 0.02))
    seen = []
    for period in range(8):
        seen.append(read(now))
        state = RobotState.empty(12)
        status = late.read(state)
        for robot in (now, late):
            robot.write(servo(robot, offset=0.1 * period))
        earlier = seen[max(period - 1, 0)]
        for name in ("joint_position", "joint_velocity", "joint_torque", "imu_quaternion", "imu_angular_velocity"):
            np.testing.assert_array_equal(getattr(state, name), getattr(earlier, name))
        assert status.age == pytest.approx(0.02 if period else 0.0)
        np.testing.assert_array_equal(state.linear_velocity, seen[-1].linear_velocity)  # the truth is not delayed
        clock.pass_seconds(0.02)


def test_noise_stays_within_its_bounds_and_off_the_physics(contract: Contract, clock: FakeClock):
    noise = Imperfections(
        joint_position_noise=0.01, joint_velocity_noise=1.5, angular_velocity_noise=0.2, orientation_noise=0.05
    )
    robots = [SimRobot(contract, clock=clock, imperfections=kind) for kind in (None, noise, noise)]
    errors = []
    for _ in range(50):
        clean, noisy, same = (read(robot) for robot in robots)
        np.testing.assert_array_equal(noisy.joint_position, same.joint_position)
        assert np.linalg.norm(noisy.imu_quaternion) == pytest.approx(1)
        angle = 2 * np.arccos(min(1.0, abs(noisy.imu_quaternion @ clean.imu_quaternion)))
        assert angle <= 0.05 * np.sqrt(3) + 1e-9
        errors.append(
            [np.abs(getattr(noisy, name) - getattr(clean, name)).max()
             for name in ("joint_position", "joint_velocity", "imu_angular_velocity")]
        )  # fmt: skip
        clock.pass_seconds(0.02)
    largest = np.max(errors, axis=0)
    bounds = np.array((0.01, 1.5, 0.2))
    assert (largest <= bounds + 1e-12).all()
    assert (largest > 0.9 * bounds).all()  # of 150 draws or more, P(none beyond 90 %) < 1e-6
    np.testing.assert_array_equal(robots[0].data.qpos, robots[1].data.qpos)


def test_in_real_time_no_period_is_unaccounted_for(go2_onnx: Path, contract: Contract):
    robot = SimRobot(contract)
    report = run(Policy(go2_onnx), robot, lambda time: COMMAND, 0.5)
    # On a busy machine periods may be missed, but steps stay on the grid of deadlines and physics keeps up with it.
    assert report.steps + report.overruns == 25 or report.fault
    assert robot.data.time == pytest.approx(report.record.time[report.steps - 1], abs=0.1)


def test_mistakes_are_named(contract: Contract):
    cheetah = replace(contract, provenance=replace(contract.provenance, task="HalfCheetah"))
    with pytest.raises(UserError, match="task 'HalfCheetah' has no robot"):
        SimRobot(cheetah)
    with pytest.raises(UserError, match="action_delay_s must be finite and not negative, not -1"):
        Imperfections(action_delay_s=-1)


def test_a_robot_cannot_be_placed_while_it_moves(robot: SimRobot):
    read(robot)
    with pytest.raises(RuntimeError, match="already moving"):
        robot.place(robot.data.qpos, robot.data.qvel)
