"""A pole hinged on a cart: keep it up, or swing it up."""

import math
from dataclasses import dataclass

import torch

from tasks.interface import Interface, Quantity
from tasks.task import RobotTask, RobotTaskConfig, Terms, terms


@dataclass(kw_only=True)
class CartPoleConfig(RobotTaskConfig):
    """Timing and weights of both cart-pole tasks."""

    robot: str = "cartpole"
    physics_dt: float = 0.01
    control_dt: float = 0.02
    episode_s: float = 10.0
    weights: dict[str, float] = terms(upright=1.0, centred=0.2, effort=-0.01, slow=-0.002)


class CartPoleSwingup(RobotTask[CartPoleConfig]):
    """Swing the pole up from hanging and hold it over the centre of the rail. The action is the cart's force."""

    Config = CartPoleConfig

    def observe(self) -> dict[str, Terms]:
        position, velocity = self.sim.qpos, self.sim.qvel  # the cart's, the pole's
        policy = {
            "cart_position": position[:, 0],  # (N,) m
            "pole_direction": torch.stack((position[:, 1].sin(), position[:, 1].cos()), 1),  # (N, 2)
            "cart_velocity": velocity[:, 0],  # (N,) m/s
            "pole_velocity": velocity[:, 1],  # (N,) rad/s
        }
        return {"policy": policy, "critic": policy}

    def interface(self) -> Interface:
        cart = self.description.joints
        return Interface(
            observation={
                "cart_position": Quantity(source="joint_position_relative", unit="m", joints=cart),
                "pole_direction": Quantity(source="sine and cosine of the pole's angle from upright"),
                "cart_velocity": Quantity(source="joint_velocity", unit="m/s", joints=cart),
                "pole_velocity": Quantity(source="velocity of the pole's hinge", unit="rad/s"),
            }
        )

    def rewards(self) -> Terms:
        position, velocity = self.sim.qpos, self.sim.qvel
        return {
            "upright": (1 + position[:, 1].cos()) / 2,
            "centred": torch.exp(-position[:, 0].square()),
            "effort": (self.action / 10.0).square().sum(1),
            "slow": velocity[:, 1].square(),
        }

    def reset(self, ids: torch.Tensor) -> None:
        n = len(ids)
        self.sim.qpos[ids] = torch.stack((self.uniform(-0.2, 0.2, n), math.pi + self.uniform(-0.3, 0.3, n)), 1)
        self.sim.qvel[ids] = self.uniform(-0.1, 0.1, n, 2)


class CartPoleBalance(CartPoleSwingup):
    """Keep the pole, which starts near upright, from falling. The action is the cart's force."""

    def terminations(self) -> Terms:
        return {"fell": self.sim.qpos[:, 1].cos() < 0.8}

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qpos[ids] = self.uniform(-0.1, 0.1, len(ids), 2)
        self.sim.qvel[ids] = self.uniform(-0.1, 0.1, len(ids), 2)
