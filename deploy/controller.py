"""The control loop on the robot's computer: one policy, one robot, absolute deadlines, damping at the end."""

import contextlib
import gc
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import numpy as np

from deploy.clock import Clock, MonotonicClock
from deploy.commands import CommandShaper, CommandSource
from deploy.contract import Contract
from deploy.errors import ContractError
from deploy.observation import ObservationBuilder
from deploy.report import Report, RunRecord, make_report
from deploy.robot_io import JointCommand, RobotIO, RobotState
from deploy.runtime import Policy

_WARM_UP_CALLS = 200


def run(
    policy: Policy,
    io: RobotIO,
    command_source: CommandSource,
    duration_s: float,
    *,
    clock: Clock | None = None,
) -> Report:
    """Run a policy on a robot at the contract's rate for `duration_s` seconds, and damp the robot at the end.

    A step that ends after the next deadline skips the missed periods: steps stay on the grid of deadlines and are never
    made up for. The run ends early, in damping, on SIGINT or SIGTERM, on a state that is not finite, stale or tilted
    beyond the contract's limit, on an output that is not finite, and when too many periods were missed. An error of the
    robot's own is raised after damping.

    Raises:
        ContractError: the robot is not the policy's, or cannot supply or obey it, and no motor was driven; or a command
            of another length or not finite, after damping.
    """
    clock = clock or MonotonicClock()
    contract = policy.contract
    if contract.action.type != "position":
        raise ContractError(f"the controller drives joint positions, and this policy gives {contract.action.type!r}: "
                            "train it on a task whose actions are position targets")  # fmt: skip
    loop = _Loop(policy, io, command_source, clock, round(duration_s / contract.timing.control_dt))
    for _ in range(_WARM_UP_CALLS):
        policy.act(np.zeros((1, contract.observation.dim), np.float32))
    try:
        io.open()
        with _caught_signals() as signals, _no_garbage_collection():
            try:
                fault = loop.run(signals)
            finally:
                io.damp()
    finally:
        io.close()
    reason = fault or (f"stopped by {signals[0]}" if signals else "finished")
    return make_report(contract, loop.record, reason, fault is not None, loop.overruns)


class _Loop:
    def __init__(self, policy: Policy, io: RobotIO, command_source: CommandSource, clock: Clock, periods: int) -> None:
        contract = policy.contract
        self._policy = policy
        self._io = io
        self._clock = clock
        self._command_source = command_source
        self._contract = contract
        self._periods = periods
        self._builder = ObservationBuilder(contract, io.profile)
        self._shaper = CommandShaper(contract.commands, contract.timing.control_dt)
        self._state = RobotState.empty(len(io.profile.joints))
        self._command = _gains(contract, self._builder, len(io.profile.joints))
        self._guard = _StateGuard(contract, self._builder, io.profile.joints)
        self._clip_raw = np.array(contract.action.clip_raw or [(-np.inf, np.inf)] * len(contract.action.joints))
        self.record = RunRecord(periods, len(contract.action.joints), len(self._shaper.value))
        self.overruns = 0

    def run(self, signals: list[str]) -> str | None:
        """Step until the time is up or a signal comes; return the fault that ended it, if one did."""
        timing, safety, state, record = self._contract.timing, self._contract.safety, self._state, self.record
        place = self._builder.order.policy
        clip_low, clip_high = self._clip_raw.T
        keeps_raw = self._contract.action.last_action_definition == "raw"
        last_action = np.zeros(len(place), np.float32)
        slew = np.inf if safety.slew_limit is None else np.array(safety.slew_limit) * timing.control_dt
        first_position = sent = None
        missed_in_a_row = 0
        start = self._clock.now_ns()
        period = 0
        while period < self._periods:
            self._clock.sleep_until(start + self._deadline(period))
            if signals:
                return None
            now = self._clock.now_ns()
            time = (now - start) * 1e-9
            status = self._io.read(state)
            if fault := self._guard.fault(state, status.sequence, status.age, now):
                return fault
            command = self._shaper.update(self._command_source(time), time)

            observation = self._builder.build(state, command, last_action)
            before = self._clock.now_ns()
            action, target = self._policy.act(observation)
            inference = self._clock.now_ns() - before
            if not (np.isfinite(action).all() and np.isfinite(target).all()):
                return f"the policy's output was not finite at {time:.3f} s"
            last_action = action[0] if keeps_raw else np.clip(action[0], clip_low, clip_high)

            if first_position is None or sent is None:
                first_position = sent = state.joint_position[place].copy()
            wanted = target[0].astype(np.float64)
            if time < safety.fade_in_s:
                wanted = first_position + (wanted - first_position) * (time / safety.fade_in_s)
            sent = sent + np.clip(wanted - sent, -slew, slew)
            self._command.position[place] = sent
            self._io.write(self._command)

            row = record.steps
            record.time[row] = time
            record.start_ns[row] = now
            record.inference_ns[row] = inference
            record.command[row] = command
            record.joint_position[row] = state.joint_position[place]
            record.target[row] = sent
            record.linear_velocity[row] = state.linear_velocity
            record.angular_velocity[row] = self._builder.angular_velocity(state)
            record.steps += 1

            period += 1
            missed = 0
            late = self._clock.now_ns() - start
            while self._deadline(period) < late and period < self._periods:
                period += 1
                missed += 1
            self.overruns += missed
            missed_in_a_row = missed_in_a_row + missed if missed else 0
            if missed_in_a_row > safety.overrun_limit:
                return f"{missed_in_a_row} control periods were missed in a row at {time:.3f} s"
        return None

    def _deadline(self, period: int) -> int:
        # From the start each time: a period that is no whole number of nanoseconds does not add up to a drift.
        return round(period * self._contract.timing.control_dt * 1e9)


class _StateGuard:
    """Says what is wrong with a state, if anything."""

    def __init__(self, contract: Contract, builder: ObservationBuilder, joints: tuple[str, ...]) -> None:
        self._builder = builder
        self._joints = joints
        self._stale_s = contract.safety.stale_s
        limit = contract.safety.tilt_limit_rad
        self._tilt_limit = math.inf if limit is None else limit
        self._sequence: int | None = None
        self._new_at = 0

    def fault(self, state: RobotState, sequence: int, age: float, now_ns: int) -> str | None:
        if sequence != self._sequence:
            self._sequence, self._new_at = sequence, now_ns
        age = max(age, (now_ns - self._new_at) * 1e-9)
        if not age <= self._stale_s:
            return f"the robot's state is {age * 1e3:.0f} ms old, more than {self._stale_s * 1e3:.0f} ms"
        for name in ("joint_position", "joint_velocity"):
            finite = np.isfinite(getattr(state, name))
            if not finite.all():
                return f"{name} of {self._joints[int(np.argmin(finite))]} is not finite"
        for name in ("imu_quaternion", "imu_angular_velocity"):
            if not np.isfinite(getattr(state, name)).all():
                return f"{name} is not finite"
        norm = float(np.linalg.norm(state.imu_quaternion))
        if abs(norm - 1.0) > 0.05:
            return f"imu_quaternion has norm {norm:.3f}, not 1"
        # From gravity, not Euler angles, which are undefined where the robot points straight up.
        tilt = math.acos(min(1.0, max(-1.0, -float(self._builder.projected_gravity(state)[2]))))
        if tilt > self._tilt_limit:
            return f"the base is tilted by {tilt:.2f} rad, more than {self._tilt_limit:.2f} rad"
        return None


def _gains(contract: Contract, builder: ObservationBuilder, joints: int) -> JointCommand:
    """Return the command that every step sends, but for the positions of the policy's joints."""
    command = JointCommand.zero(joints)
    known = {joint.name: joint for joint in contract.robot.joints}
    policy = [known[name] for name in contract.action.joints]
    held = contract.robot.uncontrolled
    for place, group in ((builder.order.policy, policy), (builder.order.held, held)):
        command.kp[place] = [joint.kp for joint in group]
        command.kd[place] = [joint.kd for joint in group]
    command.position[builder.order.held] = [joint.hold_pos for joint in held]
    return command


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[str]]:
    """Collect the names of SIGINT and SIGTERM in a list instead of obeying them."""
    received: list[str] = []
    # Python hands signals to the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def keep(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)

    caught = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, keep) for number in caught]
    try:
        yield received
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector, whose pauses are milliseconds, out of the loop."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
