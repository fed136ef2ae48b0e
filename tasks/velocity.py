"""Follow a commanded planar velocity and yaw rate on flat ground."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from sim import quaternion
from sim.errors import UserError
from sim.mirror import Mirror
from tasks.events import Event, at_start, every, push, scale
from tasks.interface import CommandRange, Interface, Quantity
from tasks.task import JointPositionTask, RobotTaskConfig, Terms, terms


@dataclass(kw_only=True)
class VelocityRange:
    """Commanded velocities in the base frame, drawn uniformly."""

    x: tuple[float, float] = (-1.0, 1.0)
    """Forward, m/s."""
    y: tuple[float, float] = (-0.5, 0.5)
    """To the left, m/s."""
    yaw: tuple[float, float] = (-1.0, 1.0)
    """Turning left, rad/s."""
    resample_s: tuple[float, float] = (5.0, 10.0)
    """Time to the next command, s."""
    standing: float = 0.05
    """Share of commands that are zero."""

    def __post_init__(self) -> None:
        for name in ("x", "y", "yaw", "resample_s"):
            low, high = getattr(self, name)
            if not -math.inf < low <= high < math.inf:
                raise UserError(f"command.{name} must be an ordered range, not ({low}, {high})")
        if not self.resample_s[0] > 0:
            raise UserError(f"command.resample_s must be positive, not {self.resample_s}")
        if not 0 <= self.standing <= 1:
            raise UserError(f"command.standing must be a share between 0 and 1, not {self.standing}")


@dataclass(kw_only=True)
class VelocityConfig(RobotTaskConfig):
    """Command, weights, noise and randomisation of the velocity task."""

    command: VelocityRange = field(default_factory=VelocityRange)
    weights: dict[str, float] = terms(
        track_velocity=2.0,
        track_yaw=1.0,
        gait=0.5,
        air_time=2.0,
        clearance=-4.0,
        slip=-0.1,
        tilt=-2.5,
        height=-20.0,
        vertical_velocity=-1.0,
        roll_pitch_rate=-0.05,
        torque=-2e-4,
        action_rate=-0.2,
        pose=-0.2,
        fell=-10.0,
    )
    noise: dict[str, float] = terms(angular_velocity=0.2, gravity=0.05, joint_position=0.01, joint_velocity=1.5)
    curriculum: bool = True
    """Start with narrow commands and widen them as tracking improves."""
    push_velocity: float = 0.5
    """Largest velocity a push adds along each horizontal axis, m/s; 0 for none."""
    push_every_s: tuple[float, float] = (6.0, 10.0)
    """Time between pushes, s."""
    friction: tuple[float, float] = (0.6, 1.4)
    """Range of the factor on the feet's friction."""
    base_mass: tuple[float, float] = (0.9, 1.2)
    """Range of the factor on the base's mass and inertia."""


class Velocity(JointPositionTask[VelocityConfig]):
    """Follow a commanded planar velocity and yaw rate on flat ground, from what a real legged robot can sense."""

    Config = VelocityConfig
    stance_s = 0.3
    """Time a foot should stay in the air or on the ground, s."""

    def __init__(self, config: VelocityConfig):
        super().__init__(config)
        feet = self.description.feet
        if len(feet) != 4:
            raise UserError(f"the velocity task needs a robot with four feet, sites with a touch sensor "
                            f"'<site>_contact' each, and {config.robot!r} has {len(feet)}")  # fmt: skip

    def setup(self) -> None:
        self.command = self.buffer("command", 3)
        self.command_timer = self.buffer("command_timer")
        self.air_time = self.buffer("air_time", len(self.description.feet))
        self._foot_before = self.robot.foot_position
        self._note_feet()
        self.width = self.level("command_width", 0.3 if self.config.curriculum else 1.0)

    def observe(self) -> dict[str, Terms]:
        r = self.robot
        policy = {
            "angular_velocity": r.angular_velocity,  # (N, 3) rad/s, base frame
            "gravity": r.projected_gravity,  # (N, 3) base frame
            "joint_position": r.joint_position - r.default_position,  # (N, J) rad
            "joint_velocity": r.joint_velocity,  # (N, J) rad/s
            "last_action": self.last_action,  # (N, J)
            "command": self.command,  # (N, 3) m/s, m/s, rad/s
        }
        privileged = {
            "linear_velocity": r.linear_velocity,  # (N, 3) m/s, base frame
            "height": r.base_position[:, 2],  # (N,) m
            "foot_contact": r.foot_contact.double(),  # (N, F)
            "air_time": self.air_time.clamp(max=1.0),  # (N, F) s
        }
        return {"policy": policy, "critic": policy | privileged}

    def interface(self) -> Interface:
        base, joints, command = self.description.base, self.description.joints, self.config.command
        ranges = (command.x, command.y, command.yaw)
        return Interface(
            observation={
                "angular_velocity": Quantity(source="angular_velocity", unit="rad/s", frame=base),
                "gravity": Quantity(source="projected_gravity", frame=base),
                "joint_position": Quantity(source="joint_position_relative", unit="rad", joints=joints),
                "joint_velocity": Quantity(source="joint_velocity", unit="rad/s", joints=joints),
                "last_action": Quantity(source="last_action", joints=joints),
                "command": Quantity(source="command", unit="m/s, m/s, rad/s", frame=base),
            },
            commands=(
                CommandRange(
                    name="velocity",
                    components=("linear_velocity_x", "linear_velocity_y", "angular_velocity_z"),
                    units=("m/s", "m/s", "rad/s"),
                    ranges=ranges,
                    default=tuple(min(max(0.0, low), high) for low, high in ranges),
                ),
            ),
            tilt_limit=1.0,
        )

    def rewards(self) -> Terms:
        r, moving = self.robot, self._moving()
        speed, turn, contact = r.linear_velocity, r.angular_velocity, r.foot_contact
        foot_speed = (r.foot_position - self._foot_before)[..., :2].norm(dim=-1) / self.config.control_dt
        swing_height = 0.08 + 0.022
        return {
            "track_velocity": torch.exp(-(self.command[:, :2] - speed[:, :2]).square().sum(1) / 0.15),
            "track_yaw": torch.exp(-(self.command[:, 2] - turn[:, 2]).square() / 0.25),
            "gait": _trot(contact).double() * moving + contact.all(1).double() * ~moving,
            "air_time": ((self._flight - self.stance_s).clamp(max=0.2) * self._landed).sum(1) * moving,
            "clearance": ((r.foot_position[..., 2] - swing_height).square() * foot_speed * ~contact).sum(1),
            "slip": (foot_speed.square() * contact).sum(1).clamp(max=4.0),
            "tilt": r.projected_gravity[:, :2].square().sum(1),
            "height": (r.base_position[:, 2] - 0.30).square(),
            "vertical_velocity": speed[:, 2].square(),
            "roll_pitch_rate": turn[:, :2].square().sum(1),
            "torque": r.joint_torque.square().sum(1),
            "action_rate": (self.action - self.last_action).square().sum(1),
            "pose": (r.joint_position - r.default_position).square().sum(1) * torch.where(moving, 0.5, 2.0),
            "fell": self._fell().double(),
        }

    def terminations(self) -> Terms:
        return {"fell": self._fell()}

    def randomise(self) -> Iterable[Event]:
        config = self.config
        yield at_start(scale("body_mass", of=self.description.base, by=config.base_mass))
        yield at_start(scale("geom_friction", of=self.description.feet, by=config.friction))
        if config.push_velocity:
            yield every(config.push_every_s, push(config.push_velocity))

    def reset(self, ids: torch.Tensor) -> None:
        n, r = len(ids), self.robot
        pose = torch.zeros(n, self.sim.qpos.shape[1], dtype=torch.float64, device=self.sim.device)
        pose[:, :2] = self.uniform(-1.0, 1.0, n, 2)
        pose[:, 2] = self.description.base_height + 0.02
        pose[:, 3:7] = quaternion.from_yaw(self.uniform(-torch.pi, torch.pi, n))
        pose[:, r.position_index] = r.default_position + self.uniform(-0.1, 0.1, n, len(self.description.joints))
        self.sim.qpos[ids] = pose
        self.sim.qvel[ids, :6] = self.uniform(-0.2, 0.2, n, 6)
        self.air_time[ids] = 0
        self._resample(ids)

    def before_step(self) -> None:
        self._foot_before = self.robot.foot_position

    def advance(self) -> None:
        self._note_feet()

    def renew(self) -> None:
        self.command_timer -= self.config.control_dt
        due = (self.command_timer <= 0).nonzero().squeeze(1)
        if len(due):
            self._resample(due)

    def progress(self, log: dict[str, float]) -> None:
        if not self.config.curriculum:
            return
        best = self.config.weights["track_velocity"] * self.config.episode_s / self.config.control_dt
        if best > 0 and log["reward/track_velocity"] / best > 0.6:
            self.width.copy_((self.width + 0.002 * log["episode/count"] ** 0.5).clamp(max=1.0))

    def metrics(self) -> Terms:
        r = self.robot
        return {
            "velocity_error": (self.command[:, :2] - r.linear_velocity[:, :2]).norm(dim=1),  # m/s
            "yaw_rate_error": (self.command[:, 2] - r.angular_velocity[:, 2]).abs(),  # rad/s
        }

    def mirrors(self) -> tuple[dict[str, Mirror], Mirror]:
        """Reflect left and right: lateral vectors and turning change sign, legs change places."""
        joints, feet = self.robot.joint_mirror(), self.robot.foot_mirror()
        parts = {
            "angular_velocity": Mirror.signs(-1, 1, -1),
            "gravity": Mirror.signs(1, -1, 1),
            "joint_position": joints,
            "joint_velocity": joints,
            "last_action": joints,
            "command": Mirror.signs(1, -1, -1),
        }
        privileged = {
            "linear_velocity": Mirror.signs(1, -1, 1),
            "height": Mirror.signs(1),
            "foot_contact": feet,
            "air_time": feet,
        }
        return {"policy": Mirror.join(parts), "critic": Mirror.join(parts | privileged)}, joints

    def log(self) -> dict[str, float]:
        return {"command_width": float(self.width)}

    def evaluation_config(self) -> VelocityConfig:
        return replace(self.config, curriculum=False)

    def play_config(self) -> VelocityConfig:
        config = super().play_config()
        config.curriculum, config.push_velocity, config.friction, config.base_mass = False, 0.0, (1.0, 1.0), (1.0, 1.0)
        return config

    def _note_feet(self) -> None:
        """Keep the time each foot has been in the air, and what it was for the feet that have just landed."""
        r, dt = self.robot, self.config.control_dt
        self.air_time += dt
        self._landed = r.foot_contact & (self.air_time > 1.5 * dt)
        self._flight = self.air_time.clone()
        self.air_time *= ~r.foot_contact

    def _resample(self, ids: torch.Tensor) -> None:
        command, n = self.config.command, len(ids)
        drawn = torch.stack([self.uniform(*axis, n) for axis in (command.x, command.y, command.yaw)], 1)
        walk = self.uniform(0.0, 1.0, n) >= command.standing
        self.command[ids] = drawn * self.width * walk[:, None]
        self.command_timer[ids] = self.uniform(*command.resample_s, n)

    def _moving(self) -> torch.Tensor:
        """(N,) bool: the command asks for motion."""
        return self.command.abs().sum(1) > 0.1

    def _fell(self) -> torch.Tensor:
        """(N,) bool: tilted by more than 60 degrees, or lying."""
        return (self.robot.projected_gravity[:, 2] > -0.5) | (self.robot.base_position[:, 2] < 0.15)


def _trot(contact: torch.Tensor) -> torch.Tensor:
    """(N,) bool: exactly one diagonal pair of the feet, which are FR, FL, RR, RL, is on the ground."""
    fr, fl, rr, rl = contact.unbind(1)
    return (fr == rl) & (fl == rr) & (fr != fl)
