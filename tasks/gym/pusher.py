"""A seven-joint arm: push a cylinder to a goal."""

from dataclasses import dataclass

import torch

from tasks.gym.suite import GymConfig, GymTask
from tasks.task import Terms, terms

OBJECT, GOAL = slice(7, 9), slice(9, 11)
"""Coordinates of the cylinder and of the goal on the table: y, then x."""


@dataclass(kw_only=True)
class PusherConfig(GymConfig):
    """Timing and weights of Gymnasium's Pusher-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.05
    episode_s: float = 5.0
    reset_noise: float = 0.005
    """Half-width of the uniform initial velocity of the arm, rad/s."""
    weights: dict[str, float] = terms(reward_dist=-1.0, reward_ctrl=-0.1, reward_near=-0.5)
    clearance: float = 0.17
    """Least initial distance of the cylinder from the goal, m."""


class Pusher(GymTask[PusherConfig]):
    """Push the cylinder to the goal. The actions are the torques of the seven joints, N m."""

    Config = PusherConfig
    model_file = "pusher_v5.xml"

    def setup(self) -> None:
        position, model = self.sim.bind("xpos"), self.sim.model
        self.tips, self.object, self.target = (position[:, model.body(b).id] for b in ("tips_arm", "object", "goal"))

    def observe(self) -> dict[str, Terms]:
        policy = {
            "qpos": self.sim.qpos[:, :7],  # (N, 7) rad, of the arm
            "qvel": self.sim.qvel[:, :7],  # (N, 7) rad/s
            "tips_arm": self.tips,  # (N, 3) m
            "object": self.object,  # (N, 3) m
            "goal": self.target,  # (N, 3) m
        }
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return {
            "reward_dist": (self.object - self.target).norm(dim=1),
            "reward_ctrl": self.control_cost(),
            "reward_near": (self.object - self.tips).norm(dim=1),
        }

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qpos[ids, OBJECT] = self._cylinder(len(ids))
        self.sim.qpos[ids, GOAL] = 0.0
        self.sim.qvel[ids] = self.initial_velocity(len(ids))

    def initial_velocity(self, n: int) -> torch.Tensor:
        velocity = super().initial_velocity(n)
        velocity[:, 7:] = 0.0
        return velocity

    def _cylinder(self, n: int) -> torch.Tensor:
        """Return (n, 2) positions, uniform over the part of a rectangle that is clear of the goal."""
        position = torch.zeros(n, 2, dtype=torch.float64, device=self.sim.device)
        near = position.norm(dim=1) <= self.config.clearance
        while near.any():
            count = int(near.sum())
            position[near] = torch.stack((self.uniform(-0.3, 0.0, count), self.uniform(-0.2, 0.2, count)), 1)
            near = position.norm(dim=1) <= self.config.clearance
        return position
