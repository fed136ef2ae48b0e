"""Poles on a cart: keep one, or two on top of each other, upright."""

from dataclasses import dataclass

import torch

from tasks.gym.suite import GymConfig, GymTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class InvertedPendulumConfig(GymConfig):
    """Timing and weights of Gymnasium's InvertedPendulum-v5."""

    physics_dt: float = 0.02
    control_dt: float = 0.04
    episode_s: float = 40.0
    reset_noise: float = 0.01
    weights: dict[str, float] = terms(reward_survive=1.0)
    healthy_angle: float = 0.2
    """Largest angle of the pole from upright, rad."""


@dataclass(kw_only=True)
class InvertedDoublePendulumConfig(GymConfig):
    """Timing and weights of Gymnasium's InvertedDoublePendulum-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.05
    episode_s: float = 50.0
    reset_noise: float = 0.1
    weights: dict[str, float] = terms(reward_survive=10.0, distance_penalty=-1.0, velocity_penalty=-1.0)
    healthy_height: float = 1.0
    """Height, m, that the tip of the upper pole has to stay above."""


class InvertedPendulum(GymTask[InvertedPendulumConfig]):
    """Keep the pole upright. The action is the force on the cart, as a fraction of its gear."""

    Config = InvertedPendulumConfig
    model_file = "inverted_pendulum.xml"

    def observe(self) -> dict[str, Terms]:
        policy = {"qpos": self.sim.qpos, "qvel": self.sim.qvel}  # (N, 2) each: the cart's, the pole's
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return {"reward_survive": (~self.fell()).double()}

    def terminations(self) -> Terms:
        return {"fell": self.fell()}

    def fell(self) -> torch.Tensor:
        """Return (N,) bool: the pole leans too far."""
        return self.sim.qpos[:, 1].abs() > self.config.healthy_angle


class InvertedDoublePendulum(GymTask[InvertedDoublePendulumConfig]):
    """Keep both poles upright. The action is the force on the cart, as a fraction of its gear."""

    Config = InvertedDoublePendulumConfig
    model_file = "inverted_double_pendulum.xml"

    def setup(self) -> None:
        self.tip = self.sim.bind("site_xpos")[:, self.sim.model.site("tip").id]
        self.constraint_force = self.sim.bind("qfrc_constraint")

    def observe(self) -> dict[str, Terms]:
        angle = self.sim.qpos[:, 1:]
        policy = {
            "cart_position": self.sim.qpos[:, 0],  # (N,) m
            "sin": angle.sin(),  # (N, 2) of the hinges
            "cos": angle.cos(),  # (N, 2)
            "qvel": self.sim.qvel.clamp(-10.0, 10.0),  # (N, 3)
            "constraint_force": self.constraint_force[:, 0].clamp(-10.0, 10.0),  # (N,) N, on the cart
        }
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        x, height, velocity = self.tip[:, 0], self.tip[:, 2], self.sim.qvel
        return {
            "reward_survive": (~self.fell()).double(),
            "distance_penalty": 0.01 * x.square() + (height - 2.0).square(),
            "velocity_penalty": 1e-3 * velocity[:, 1].square() + 5e-3 * velocity[:, 2].square(),
        }

    def terminations(self) -> Terms:
        return {"fell": self.fell()}

    def fell(self) -> torch.Tensor:
        """Return (N,) bool: the tip is too low."""
        return self.tip[:, 2] <= self.config.healthy_height

    def initial_velocity(self, n: int) -> torch.Tensor:
        return self.config.reset_noise * self.normal(n, self.sim.model.nv)
