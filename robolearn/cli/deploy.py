"""``robolearn deploy``: on a robot's computer it needs numpy and onnxruntime alone."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from deploy import controller, golden
from deploy.commands import CommandSource
from deploy.contract import Command, Contract
from deploy.errors import ContractError
from deploy.report import Report
from deploy.robot_io import RobotIO
from deploy.runtime import Policy
from robolearn.cli.parser import Failure, Parser, positive
from sim.errors import unknown

ROBOTS: dict[str, str] = {"sim": "robolearn.sim_robot:SimRobot"}
"""What makes the ``RobotIO`` of each robot from a contract."""


def run(arguments: Sequence[str]) -> int:
    """Deploy."""
    parser = Parser("deploy", "Run an exported policy in the controller's loop; Ctrl-C ends it in damping.")
    parser.add_argument("policy", metavar="FILE.onnx", type=Path, help="an exported policy")
    parser.add_argument("--robot", metavar="NAME", required=True, help=f"{', '.join(ROBOTS)}; sim needs no hardware")
    parser.add_argument("--duration", metavar="S", type=positive, default=20.0, help="how long, s")
    parser.add_argument("--command", metavar="C", type=float, nargs="+", help="a fixed command, e.g. 0.5 0 0")
    options = parser.parse(arguments)
    if options.robot not in ROBOTS:
        raise unknown("robot", options.robot, ROBOTS)
    policy = Policy(options.policy)
    replayed = golden.verify(options.policy)  # no motor moves before this machine computes what the exporter did
    commands = _commands(policy.contract, options.command)
    module, _, name = ROBOTS[options.robot].partition(":")
    make: Callable[[Contract], RobotIO] = getattr(importlib.import_module(module), name)
    robot = make(policy.contract)
    report = controller.run(policy, robot, commands, options.duration)
    _print(report, replayed)
    if report.fault:
        raise Failure(report.reason)
    if report.reason != "finished":
        raise KeyboardInterrupt(f"{report.reason}; the robot was damped")
    return 0


def _commands(contract: Contract, values: list[float] | None) -> CommandSource:
    """Return the source of a fixed command, or of none, which leaves the contract's default."""
    if values is None:
        return lambda time: None
    names = [name for command in contract.commands for name in command.components]
    if len(values) != len(names):
        raise ContractError(f"--command has {len(values)} numbers, and the policy takes {len(names)}"
                            + (f": {', '.join(names)}" if names else ""))  # fmt: skip
    _within(contract.commands, values)
    fixed = np.array(values)
    return lambda time: fixed


def _within(commands: Sequence[Command], values: Sequence[float]) -> None:
    named = [pair for c in commands for pair in zip(c.components, c.ranges, strict=True)]
    for (name, (low, high)), value in zip(named, values, strict=True):
        if not low <= value <= high:
            raise ContractError(f"--command: {name} is {value:g}, and the policy was trained for {low:g} to {high:g}")


def _print(report: Report, replayed: golden.GoldenReport) -> None:
    """Print the figures without a table's library, which a robot's computer need not have."""
    jitter, inference = report.period_jitter_us, report.inference_us
    lines = [
        ("golden replay", f"{replayed.steps} steps, largest error {replayed.action_error:.1e}"),
        ("ended", report.reason),
        ("steps", f"{report.steps} at {report.rate_hz:.2f} Hz, {report.overruns} periods missed"),
        ("period jitter", f"p50 {jitter.p50:.0f}  p99 {jitter.p99:.0f}  max {jitter.max:.0f} us"),
        ("inference", f"p50 {inference.p50:.0f}  p99 {inference.p99:.0f}  max {inference.max:.0f} us"),
        ("joint error", f"{report.joint_error_rms:.4f} rms, of the target one step before"),
        *((name, f"{error:.3f} mean absolute error of the command") for name, error in report.command_error.items()),
    ]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{name:<{width}}  {text}")
