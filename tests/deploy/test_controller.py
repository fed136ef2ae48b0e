"""The control loop on a clock of its own: rate, missed periods, and every way to end in damping."""

import gc
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from deploy.clock import MonotonicClock
from deploy.contract import Contract, HeldJoint
from deploy.controller import run
from deploy.errors import ContractError
from deploy.exporter import export
from deploy.robot_io import JointCommand, ReadStatus, RobotProfile, RobotState
from deploy.runtime import Policy

MOTORS = ("RR", "FL", "RL", "FR")
DEFAULT = np.array([-1.4999999999999998, 0.1, 1.0 / 3.0, -0.2])  # in motor order
NAN = float("nan")


class FakeClock:
    """Time passes only when someone sleeps, or when a test says so."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_007
        self.deadlines: list[int] = []

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self.deadlines.append(deadline_ns)
        self.time_ns = max(self.time_ns, deadline_ns)

    def pass_seconds(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)


class Integrator:
    """Joints of unit inertia under the motor's law, stepped to the clock's time when read."""

    def __init__(self, clock: FakeClock, joints: tuple[str, ...] = MOTORS, on_read=None) -> None:
        self.profile = RobotProfile(name="bench", joints=joints, imu_frame="imu")
        self.clock = clock
        self.on_read = on_read or (lambda robot, state: None)
        self.position = np.zeros(len(joints))
        self.position[-4:] = DEFAULT
        self.velocity = np.zeros(len(joints))
        self.command: JointCommand | None = None
        self.reads = 0
        self.sequence = 0
        self.age = 0.0
        self.log: list[str] = []
        self.written: list[JointCommand] = []
        self.stepped_ns = clock.now_ns()

    def open(self) -> None:
        self.log.append("open")

    def read(self, out: RobotState) -> ReadStatus:
        self._step()
        self.reads += 1
        self.sequence += 1
        out.joint_position[:] = self.position
        out.joint_velocity[:] = self.velocity
        out.imu_quaternion[:] = (1.0, 0.0, 0.0, 0.0)
        out.imu_angular_velocity[:] = (0.0, 0.0, 0.25)
        out.linear_velocity[:] = NAN
        self.on_read(self, out)
        return ReadStatus(self.sequence, self.age)

    def write(self, command: JointCommand) -> None:
        self.log.append("write")
        self.command = JointCommand(
            *(getattr(command, name).copy() for name in ("position", "velocity", "kp", "kd", "torque"))
        )
        self.written.append(self.command)

    def damp(self) -> None:
        self.log.append("damp")

    def close(self) -> None:
        self.log.append("close")

    def _step(self) -> None:
        dt = 0.0005
        while self.stepped_ns < self.clock.now_ns():
            self.stepped_ns += round(dt * 1e9)
            if self.command is not None:
                c = self.command
                torque = c.torque + c.kp * (c.position - self.position) + 10 * c.kd * (c.velocity - self.velocity)
                self.velocity += dt * torque
                self.position += dt * self.velocity


@pytest.fixture
def make_policy(module, observations, tmp_path):
    def make(contract: Contract) -> Policy:
        export(module, contract, observations, tmp_path / "policy.onnx")
        return Policy(tmp_path / "policy.onnx")

    return make


@pytest.fixture
def policy(make_policy, contract) -> Policy:
    return make_policy(contract)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def standing(time: float) -> np.ndarray:
    return np.zeros(3)


def test_the_mean_rate_is_exact_and_deadlines_are_absolute(policy, clock):
    """Each step takes a different part of the period; none of it is carried into the next."""
    start = clock.now_ns()

    def work(time: float) -> np.ndarray:
        clock.pass_seconds(0.019 * abs(math.sin(100 * time)))
        return np.zeros(3)

    report = run(policy, Integrator(clock), work, 10.0, clock=clock)
    assert report.steps == 500
    assert report.rate_hz == 50.0
    assert report.overruns == 0
    assert report.period_jitter_us.max == 0.0
    assert clock.deadlines == [start + k * 20_000_000 for k in range(500)]
    assert (report.reason, report.fault) == ("finished", False)


def test_a_period_that_is_no_whole_number_of_nanoseconds_does_not_drift(make_policy, contract, clock):
    timing = replace(contract.timing, physics_dt=1 / 360, decimation=6, control_dt=1 / 60)
    start = clock.now_ns()
    run(make_policy(replace(contract, timing=timing)), Integrator(clock), standing, 60.0, clock=clock)
    assert clock.deadlines[-1] - start == round(3599 / 60 * 1e9)


def test_missed_periods_are_skipped_and_counted_never_made_up(policy, clock):
    start = clock.now_ns()

    def stall_once(time: float) -> np.ndarray:
        if abs(time - 0.1) < 1e-9:
            clock.pass_seconds(0.07)  # from 0.10 s to 0.17 s: the steps at 0.12, 0.14 and 0.16 s are lost
        return np.zeros(3)

    report = run(policy, Integrator(clock), stall_once, 0.4, clock=clock)
    steps = [(ns - start) // 20_000_000 for ns in report.record.start_ns[: report.steps]]
    assert steps == [0, 1, 2, 3, 4, 5, *range(9, 20)]
    assert all((ns - start) % 20_000_000 == 0 for ns in report.record.start_ns[: report.steps])
    assert report.overruns == 3
    assert report.period_jitter_us.max == pytest.approx(60_000)
    assert not report.fault


def test_too_many_missed_in_a_row_end_in_damping(policy, clock):
    def slow(time: float) -> np.ndarray:
        clock.pass_seconds(0.03)
        return np.zeros(3)

    robot = Integrator(clock)
    report = run(policy, robot, slow, 10.0, clock=clock)
    assert report.fault
    assert "missed in a row" in report.reason
    assert report.steps == 6  # each misses one; the limit is 5
    assert robot.log[-2:] == ["damp", "close"]


def _break(at: int, how):
    def on_read(robot: Integrator, state: RobotState) -> None:
        if robot.reads >= at:
            how(robot, state)

    return on_read


def _tilt(robot: Integrator, state: RobotState) -> None:
    state.imu_quaternion[:] = (math.cos(0.55), math.sin(0.55), 0.0, 0.0)  # rolled by 1.1 rad, the limit is 1.0


def _lean(robot: Integrator, state: RobotState) -> None:
    state.imu_quaternion[:] = (math.cos(0.45), 0.0, math.sin(0.45), 0.0)


def _stop_counting(robot: Integrator, state: RobotState) -> None:
    robot.sequence = 10


FAULTS = {
    "joint_velocity of RL is not finite": lambda robot, state: state.joint_velocity.__setitem__(2, NAN),
    "joint_position of FR is not finite": lambda robot, state: state.joint_position.__setitem__(3, math.inf),
    "imu_angular_velocity is not finite": lambda robot, state: state.imu_angular_velocity.__setitem__(0, NAN),
    "imu_quaternion is not finite": lambda robot, state: state.imu_quaternion.fill(NAN),
    "imu_quaternion has norm 0.000": lambda robot, state: state.imu_quaternion.fill(0.0),
    "state is 150 ms old": lambda robot, state: setattr(robot, "age", 0.15),
    "state is 120 ms old": _stop_counting,
    "tilted by 1.10 rad": _tilt,
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_state_ends_in_damping_before_it_is_acted_on(policy, clock, reason):
    robot = Integrator(clock, on_read=_break(10, FAULTS[reason]))
    report = run(policy, robot, standing, 10.0, clock=clock)
    assert report.fault
    assert reason in report.reason
    assert robot.log[-2:] == ["damp", "close"]
    assert robot.log.count("write") == report.steps == robot.reads - 1
    # A sequence that stands still is seen after the 0.1 s that a state may be old; everything else at once.
    assert report.steps == (15 if "120 ms" in reason else 9)


def test_a_lean_within_the_limit_goes_on(policy, clock):
    report = run(policy, Integrator(clock, on_read=_break(10, _lean)), standing, 1.0, clock=clock)
    assert (report.reason, report.steps) == ("finished", 50)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_in_damping_and_a_normal_return(policy, clock, number):
    before = signal.getsignal(number)
    robot = Integrator(clock, on_read=_break(10, lambda robot, state: os.kill(os.getpid(), number)))
    report = run(policy, robot, standing, 10.0, clock=clock)
    assert report.reason == f"stopped by {number.name}"
    assert not report.fault
    assert report.steps == 10
    assert robot.log[-2:] == ["damp", "close"]
    assert signal.getsignal(number) is before


def test_an_error_of_the_robot_is_raised_after_damping(policy, clock):
    def fail(robot, state):
        raise OSError("bus off")

    robot = Integrator(clock, on_read=_break(3, fail))
    with pytest.raises(OSError, match="bus off"):
        run(policy, robot, standing, 1.0, clock=clock)
    assert robot.log == ["open", "write", "write", "damp", "close"]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_output_that_is_not_finite_is_never_sent(policy, clock, monkeypatch):
    calls = []
    act = policy.act

    def broken(observation):
        calls.append(observation)
        action, target = act(observation)
        return (action, target * NAN) if len(calls) == 205 else (action, target)  # 200 of them are the warm-up

    monkeypatch.setattr(policy, "act", broken)
    robot = Integrator(clock)
    report = run(policy, robot, standing, 1.0, clock=clock)
    assert report.fault
    assert "output was not finite" in report.reason
    assert len(robot.written) == 4
    assert all(np.isfinite(command.position).all() for command in robot.written)


def test_the_whole_command_is_in_motor_order(make_policy, contract, clock):
    """Position, kp and kd go through one permutation; a joint that the policy leaves alone is held."""
    held = HeldJoint(name="tail", hold_pos=0.5, kp=3.0, kd=0.3)
    policy = make_policy(replace(contract, robot=replace(contract.robot, uncontrolled=(held,))))
    robot = Integrator(clock, joints=("tail", *MOTORS))
    report = run(policy, robot, standing, 0.1, clock=clock)
    for sent, command in zip(report.record.target, robot.written, strict=True):
        fl, fr, rl, rr = sent
        assert command.position.tolist() == [0.5, rr, fl, rl, fr]
        assert command.kp.tolist() == [3.0, 28.0, 25.0, 27.0, 26.0]
        assert command.kd.tolist() == [0.3, 0.7, 0.7, 0.7, 0.7]
        assert not command.velocity.any()
        assert not command.torque.any()


def test_the_loop_closes_as_the_graph_and_the_contract_say(policy, contract, clock):
    """Every sent target is the policy's, for the observation written out here from the recorded run."""
    robot = Integrator(clock)
    asked = np.array([2.0, -0.1, 0.3])  # the first is beyond the contract's range of 1 m/s
    report = run(policy, robot, lambda time: asked, 0.5, clock=clock)
    velocity = np.zeros(4)
    last_action = np.zeros(4)
    seen = Integrator(clock2 := FakeClock())
    for k in range(report.steps):
        if k:
            seen.command = robot.written[k - 1]
            clock2.pass_seconds(0.02)
            seen._step()
        position, velocity = seen.position[[1, 3, 2, 0]], seen.velocity[[1, 3, 2, 0]]
        observation = np.concatenate(
            [
                [0, 0, 0.25, 0, 0, -1],
                position - np.array(contract.action.offset),
                velocity,
                last_action,
                [1.0, -0.1, 0.3],
            ]
        )
        action, target = policy.act(observation[None].astype(np.float32))
        np.testing.assert_allclose(report.record.target[k], target[0], rtol=0, atol=1e-6)
        last_action = np.clip(action[0], -1.0, 1.0)
    assert report.command_error["angular_velocity_z"] == pytest.approx(0.05)
    assert "linear_velocity_x" not in report.command_error, "the bench does not know its linear velocity"
    lag = report.record.joint_position[1 : report.steps] - report.record.target[: report.steps - 1]
    assert report.joint_error_rms == pytest.approx(np.sqrt((lag**2).mean()))


def test_targets_fade_in_and_keep_the_slew_limit(make_policy, contract, clock):
    safety = replace(contract.safety, fade_in_s=0.2, slew_limit=(0.5, 0.5, 0.5, 0.5))
    robot = Integrator(clock)
    report = run(make_policy(replace(contract, safety=safety)), robot, standing, 1.0, clock=clock)
    sent = report.record.target[: report.steps]
    np.testing.assert_array_equal(sent[0], np.array(contract.action.offset))
    assert np.abs(np.diff(sent, axis=0)).max() <= 0.5 * 0.02 + 1e-12
    assert np.abs(sent[-1] - sent[0]).max() > 0.02


def test_a_command_that_stops_coming_falls_back_to_the_default(make_policy, contract, clock):
    command = replace(contract.commands[0], timeout_s=0.1, slew=10.0, deadband=0.05, default=(0.0, 0.0, 0.5))
    policy = make_policy(replace(contract, commands=(command,)))
    robot = Integrator(clock)
    asked = np.array([1.0, 0.04, 0.5])
    report = run(policy, robot, lambda time: asked if time < 0.19 else None, 0.6, clock=clock)
    shown = report.record.command[: report.steps]
    np.testing.assert_allclose(shown[:6, 0], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert not shown[:, 1].any()
    np.testing.assert_allclose(shown[:, 2], 0.5)
    # Last asked at 0.18 s, so 0.28 s is still in time, and from 0.30 s on it slows by 0.2 m/s a step.
    np.testing.assert_allclose(shown[14:20, 0], [1.0, 0.8, 0.6, 0.4, 0.2, 0.0], atol=1e-12)


def test_a_command_of_another_shape_or_not_finite_is_one_line_after_damping(policy, clock):
    for asked, said in ((np.zeros(2), "shape"), (np.array([0.0, NAN, 0.0]), "not finite")):
        robot = Integrator(clock)
        with pytest.raises(ContractError, match=said):
            run(policy, robot, lambda time, asked=asked: asked, 1.0, clock=clock)
        assert robot.log[-2:] == ["damp", "close"]


def test_a_robot_that_is_not_the_policys_is_never_opened(policy, make_policy, contract, clock):
    robot = Integrator(clock, joints=("RR", "FL", "RL", "XX"))
    with pytest.raises(ContractError, match="FR"):
        run(policy, robot, standing, 1.0, clock=clock)
    torque = make_policy(replace(contract, action=replace(contract.action, type="torque")))
    other = Integrator(clock)
    with pytest.raises(ContractError, match="torque"):
        run(torque, other, standing, 1.0, clock=clock)
    assert robot.log == other.log == []


def test_no_step_starts_before_its_deadline_on_the_computers_clock(make_policy, contract):
    patient = replace(contract, safety=replace(contract.safety, overrun_limit=1000))

    class Still(Integrator):
        def _step(self) -> None:
            """Joints that do not move: this is about time."""

    report = run(make_policy(patient), Still(FakeClock()), standing, 0.4, clock=MonotonicClock())
    assert report.steps + report.overruns == 20
    assert report.steps > 0
    assert (report.record.time[: report.steps] >= 0.02 * np.arange(report.steps) - 1e-6).all()
    assert report.inference_us.p50 > 0
