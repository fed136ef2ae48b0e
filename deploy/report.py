"""What a run of the controller is judged by: tracking, timing, and why it ended."""

from dataclasses import dataclass

import numpy as np

from deploy.contract import Contract


class RunRecord:
    """One row per control step, in arrays made before the run. Joints in policy order, SI units.

    `time` (T,) s since the start; `command` (T, C); `joint_position` and `target` (T, A), measured and sent;
    `linear_velocity` m/s (NaN where the robot does not know it) and `angular_velocity` rad/s (T, 3), base frame;
    `start_ns` and `inference_ns` (T,). Only the first `steps` rows are filled.
    """

    def __init__(self, rows: int, joints: int, commands: int) -> None:
        self.steps = 0
        self.time = np.zeros(rows)
        self.command = np.zeros((rows, commands))
        self.joint_position = np.zeros((rows, joints))
        self.target = np.zeros((rows, joints))
        self.linear_velocity = np.zeros((rows, 3))
        self.angular_velocity = np.zeros((rows, 3))
        self.start_ns = np.zeros(rows, np.int64)
        self.inference_ns = np.zeros(rows, np.int64)


@dataclass(frozen=True)
class Percentiles:
    """Median, 99th percentile and maximum, in microseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Report:
    """A finished run.

    `reason` says why it ended and `fault` whether something was wrong. `rate_hz` is the mean rate of the steps made;
    `overruns` the control periods skipped; `period_jitter_us` how far each period was from the contract's.
    `joint_error_rms` (rad) compares each measured joint position with the target sent one step before;
    `command_error` holds the mean absolute error of each command component that the robot can measure.
    Figures that need more steps than were made are NaN.
    """

    reason: str
    fault: bool
    steps: int
    overruns: int
    rate_hz: float
    period_jitter_us: Percentiles
    inference_us: Percentiles
    joint_error_rms: float
    command_error: dict[str, float]
    record: RunRecord


def make_report(contract: Contract, record: RunRecord, reason: str, fault: bool, overruns: int) -> Report:
    """Return the figures of a run."""
    steps = record.steps
    periods = np.diff(record.start_ns[:steps])
    lag = record.joint_position[1:steps] - record.target[: max(steps - 1, 0)]
    return Report(
        reason=reason,
        fault=fault,
        steps=steps,
        overruns=overruns,
        rate_hz=float(1e9 / periods.mean()) if len(periods) else float("nan"),
        period_jitter_us=_percentiles(np.abs(periods * 1e-3 - contract.timing.control_dt * 1e6)),
        inference_us=_percentiles(record.inference_ns[:steps] * 1e-3),
        joint_error_rms=float(np.sqrt(np.square(lag).mean())) if lag.size else float("nan"),
        command_error=_command_error(contract, record),
        record=record,
    )


def _command_error(contract: Contract, record: RunRecord) -> dict[str, float]:
    measured = {
        f"{kind}_velocity_{axis}": velocity[: record.steps, i]
        for kind, velocity in (("linear", record.linear_velocity), ("angular", record.angular_velocity))
        for i, axis in enumerate("xyz")
    }
    components = [name for command in contract.commands for name in command.components]
    errors = {
        name: record.command[: record.steps, i] - measured[name]
        for i, name in enumerate(components)
        if name in measured
    }
    return {name: float(np.abs(e).mean()) for name, e in errors.items() if e.size and np.isfinite(e).all()}


def _percentiles(values: np.ndarray) -> Percentiles:
    if not len(values):
        return Percentiles(float("nan"), float("nan"), float("nan"))
    return Percentiles(*(float(value) for value in np.percentile(values, (50, 99, 100))))
