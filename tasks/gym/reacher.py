"""A two-link arm: reach a target."""

import math
from dataclasses import dataclass

import torch

from tasks.gym.suite import GymConfig, GymTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class ReacherConfig(GymConfig):
    """Timing and weights of Gymnasium's Reacher-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.02
    episode_s: float = 1.0
    reset_noise: float = 0.1
    weights: dict[str, float] = terms(reward_dist=-1.0, reward_ctrl=-1.0)
    velocity_noise: float = 0.005
    """Half-width of the uniform initial velocity of the arm, rad/s."""
    target_radius: float = 0.2
    """Radius, m, of the disc that targets are drawn from."""


class Reacher(GymTask[ReacherConfig]):
    """Bring the fingertip to the target. The actions are the torques of the two joints, as fractions of their gears."""

    Config = ReacherConfig
    model_file = "reacher.xml"

    def setup(self) -> None:
        position, model = self.sim.bind("xpos"), self.sim.model
        self.fingertip = position[:, model.body("fingertip").id]
        self.target = position[:, model.body("target").id]

    def observe(self) -> dict[str, Terms]:
        angle = self.sim.qpos[:, :2]
        policy = {
            "cos": angle.cos(),  # (N, 2) of the joints
            "sin": angle.sin(),  # (N, 2)
            "target": self.sim.qpos[:, 2:],  # (N, 2) m
            "qvel": self.sim.qvel[:, :2],  # (N, 2) rad/s, of the joints
            "to_fingertip": (self.fingertip - self.target)[:, :2],  # (N, 2) m
        }
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return {"reward_dist": (self.fingertip - self.target).norm(dim=1), "reward_ctrl": self.control_cost()}

    def reset(self, ids: torch.Tensor) -> None:
        super().reset(ids)
        n = len(ids)
        # A radius as the root of a uniform number is uniform over the disc.
        radius = self.config.target_radius * self.uniform(0.0, 1.0, n).sqrt()
        angle = self.uniform(0.0, 2 * math.pi, n)
        self.sim.qpos[ids, 2:] = radius[:, None] * torch.stack((angle.cos(), angle.sin()), 1)

    def initial_velocity(self, n: int) -> torch.Tensor:
        noise = self.config.velocity_noise
        velocity = torch.zeros(n, 4, dtype=torch.float64, device=self.sim.device)
        velocity[:, :2] = self.uniform(-noise, noise, n, 2)
        return velocity
