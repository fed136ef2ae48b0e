"""A four-legged ant: run forward."""

from dataclasses import dataclass

import torch

from tasks.gym.suite import GymConfig, GymTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class AntConfig(GymConfig):
    """Timing, weights and healthy range of Gymnasium's Ant-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.05
    episode_s: float = 50.0
    reset_noise: float = 0.1
    weights: dict[str, float] = terms(reward_forward=1.0, reward_ctrl=-0.5, reward_contact=-5e-4, reward_survive=1.0)
    healthy_z: tuple[float, float] = (0.2, 1.0)
    """Closed range of the torso's height, m."""
    force_range: tuple[float, float] = (-1.0, 1.0)
    """What contact forces, N, and torques, N m, are clipped to."""


class Ant(GymTask[AntConfig]):
    """Run along x. The actions are the torques of the eight leg joints, as fractions of their gears."""

    Config = AntConfig
    model_file = "ant.xml"
    external_forces = True

    def setup(self) -> None:
        self.torso = self.sim.bind("xpos")[:, 1, :2]
        self.torso_before = self.buffer("torso_before", 2)
        self.contact_force = self.buffer("contact_force", self.sim.model.nbody, 6)  # zero after a reset, as Gymnasium's

    def before_step(self) -> None:
        self.torso_before.copy_(self.torso)

    def advance(self) -> None:
        torch.clamp(self.sim.external_forces(), *self.config.force_range, out=self.contact_force)

    def observe(self) -> dict[str, Terms]:
        policy = {
            "qpos": self.sim.qpos[:, 2:],  # (N, 13): all but the x and y positions
            "qvel": self.sim.qvel,  # (N, 14)
            "cfrc_ext": self.contact_force[:, 1:].flatten(1),  # (N, 78): torque and force on each body
        }
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return {
            "reward_forward": (self.torso[:, 0] - self.torso_before[:, 0]) / self.config.control_dt,
            "reward_ctrl": self.control_cost(),
            "reward_contact": self.contact_force.square().sum((1, 2)),
            "reward_survive": self.healthy().double(),
        }

    def terminations(self) -> Terms:
        return {"unhealthy": ~self.healthy()}

    def healthy(self) -> torch.Tensor:
        """Return (N,) bool: the torso's height is within its range."""
        height, (low, high) = self.sim.qpos[:, 2], self.config.healthy_z
        return (height >= low) & (height <= high)

    def initial_velocity(self, n: int) -> torch.Tensor:
        return self.config.reset_noise * self.normal(n, self.sim.model.nv)
