"""A humanoid of seventeen motors: walk, or stand up."""

from dataclasses import dataclass
from typing import TypeVar

import torch

from tasks.gym.suite import GymConfig, GymTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class HumanoidBaseConfig(GymConfig):
    """Timing of both humanoid tasks."""

    physics_dt: float = 0.003
    control_dt: float = 0.015
    episode_s: float = 15.0
    reset_noise: float = 1e-2
    impact_limit: float = 2e7
    """Most that the sum of squared external forces, before its weight, counts: 10 after Gymnasium's weight."""


@dataclass(kw_only=True)
class HumanoidConfig(HumanoidBaseConfig):
    """Weights and healthy range of Gymnasium's Humanoid-v5."""

    weights: dict[str, float] = terms(reward_survive=5.0, reward_forward=1.25, reward_ctrl=-0.1, reward_contact=-5e-7)
    healthy_z: tuple[float, float] = (1.0, 2.0)
    """Open range of the torso's height, m."""


@dataclass(kw_only=True)
class HumanoidStandupConfig(HumanoidBaseConfig):
    """Weights of Gymnasium's HumanoidStandup-v5."""

    weights: dict[str, float] = terms(reward_linup=1.0, reward_quadctrl=-0.1, reward_impact=-5e-7, reward_survive=1.0)


HumanoidConfigT = TypeVar("HumanoidConfigT", bound=HumanoidBaseConfig)


class HumanoidTask(GymTask[HumanoidConfigT]):
    """What both tasks observe. The actions are the joint torques, as fractions of their gears."""

    external_forces = True

    def setup(self) -> None:
        model = self.sim.model
        self.inertia, self.body_velocity = self.sim.bind("cinert"), self.sim.bind("cvel")
        self.motor_force = self.sim.bind("qfrc_actuator")
        self.body_com = self.sim.bind("xipos")
        self.mass_fraction = torch.as_tensor(model.body_mass / model.body_mass.sum(), device=self.sim.device)
        self.com_before = self.buffer("com_before", 2)
        self.external_force = self.buffer("external_force", model.nbody, 6)  # zero after a reset, as Gymnasium's

    def before_step(self) -> None:
        self.com_before.copy_(self.centre_of_mass())

    def advance(self) -> None:
        self.external_force.copy_(self.sim.external_forces())

    def observe(self) -> dict[str, Terms]:
        policy = {
            "qpos": self.sim.qpos[:, 2:],  # (N, 22): all but the x and y positions
            "qvel": self.sim.qvel,  # (N, 23)
            "cinert": self.inertia[:, 1:].flatten(1),  # (N, 130): inertia and mass of each body, about the common com
            "cvel": self.body_velocity[:, 1:].flatten(1),  # (N, 78): rotational and linear, of each body
            "qfrc_actuator": self.motor_force[:, 6:],  # (N, 17) N m
            "cfrc_ext": self.external_force[:, 1:].flatten(1),  # (N, 78): torque and force on each body
        }
        return {"policy": policy, "critic": policy}

    def centre_of_mass(self) -> torch.Tensor:
        """Return (N, 2) the horizontal position, m, of the centre of mass."""
        return (self.body_com[..., :2] * self.mass_fraction[:, None]).sum(1)

    def impact(self) -> torch.Tensor:
        """Return (N,) the sum of squared external forces and torques, limited."""
        return self.external_force.square().sum((1, 2)).clamp(max=self.config.impact_limit)


class Humanoid(HumanoidTask[HumanoidConfig]):
    """Walk along x without falling."""

    Config = HumanoidConfig
    model_file = "humanoid.xml"

    def rewards(self) -> Terms:
        return {
            "reward_survive": self.healthy().double(),
            "reward_forward": (self.centre_of_mass() - self.com_before)[:, 0] / self.config.control_dt,
            "reward_ctrl": self.control_cost(),
            "reward_contact": self.impact(),
        }

    def terminations(self) -> Terms:
        return {"unhealthy": ~self.healthy()}

    def healthy(self) -> torch.Tensor:
        """Return (N,) bool: the torso's height is within its range."""
        height, (low, high) = self.sim.qpos[:, 2], self.config.healthy_z
        return (height > low) & (height < high)


class HumanoidStandup(HumanoidTask[HumanoidStandupConfig]):
    """Stand up from lying and stay up."""

    Config = HumanoidStandupConfig
    model_file = "humanoidstandup.xml"

    def rewards(self) -> Terms:
        height = self.sim.qpos[:, 2]
        return {
            "reward_linup": height / self.config.physics_dt,  # Gymnasium divides by the physics step
            "reward_quadctrl": self.control_cost(),
            "reward_impact": self.impact(),
            "reward_survive": torch.ones_like(height),
        }
