"""A planar cheetah: run forward."""

from dataclasses import dataclass

import torch

from tasks.gym.suite import GymConfig, PlanarTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class HalfCheetahConfig(GymConfig):
    """Timing and weights of Gymnasium's HalfCheetah-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.05
    episode_s: float = 50.0
    reset_noise: float = 0.1
    weights: dict[str, float] = terms(reward_forward=1.0, reward_ctrl=-0.1)


class HalfCheetah(PlanarTask[HalfCheetahConfig]):
    """Run forward. The actions are the torques of the six leg joints, as fractions of their gears."""

    Config = HalfCheetahConfig
    model_file = "half_cheetah.xml"

    def observe(self) -> dict[str, Terms]:
        policy = {"qpos": self.sim.qpos[:, 1:], "qvel": self.sim.qvel}  # (N, 8), (N, 9): all but the x position
        return {"policy": policy, "critic": policy}

    def initial_velocity(self, n: int) -> torch.Tensor:
        return self.config.reset_noise * self.normal(n, self.sim.model.nv)
