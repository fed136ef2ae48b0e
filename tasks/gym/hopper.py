"""Planar legs: hop on one, walk on two."""

from dataclasses import dataclass
from math import inf
from typing import TypeVar

import torch

from tasks.gym.suite import GymConfig, PlanarTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class HopperConfig(GymConfig):
    """Timing, weights and healthy ranges of Gymnasium's Hopper-v5."""

    physics_dt: float = 0.002
    control_dt: float = 0.008
    episode_s: float = 8.0
    reset_noise: float = 5e-3
    weights: dict[str, float] = terms(reward_forward=1.0, reward_ctrl=-1e-3, reward_survive=1.0)
    healthy_z: tuple[float, float] = (0.7, inf)
    """Open range of the torso's height, m."""
    healthy_angle: tuple[float, float] = (-0.2, 0.2)
    """Open range of the torso's pitch, rad."""
    healthy_state: tuple[float, float] = (-100.0, 100.0)
    """Open range of every position and velocity but the torso's x and z, SI units."""


@dataclass(kw_only=True)
class Walker2dConfig(HopperConfig):
    """Timing, weights and healthy ranges of Gymnasium's Walker2d-v5."""

    healthy_z: tuple[float, float] = (0.8, 2.0)
    healthy_angle: tuple[float, float] = (-1.0, 1.0)
    healthy_state: tuple[float, float] = (-inf, inf)


HopperConfigT = TypeVar("HopperConfigT", bound=HopperConfig)


class PlanarLegs(PlanarTask[HopperConfigT]):
    """Move forward without falling. The actions are the joint torques, as fractions of their gears."""

    def observe(self) -> dict[str, Terms]:
        # All but the x position: (N, nq - 1), (N, nv).
        policy = {"qpos": self.sim.qpos[:, 1:], "qvel": self.sim.qvel.clamp(-10.0, 10.0)}
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return super().rewards() | {"reward_survive": self.healthy().double()}

    def terminations(self) -> Terms:
        return {"unhealthy": ~self.healthy()}

    def healthy(self) -> torch.Tensor:
        """Return (N,) bool: the torso's height and pitch, and the rest of the state, are within their ranges."""
        c, qpos, qvel = self.config, self.sim.qpos, self.sim.qvel
        healthy = _within(qpos[:, 1], c.healthy_z) & _within(qpos[:, 2], c.healthy_angle)
        return healthy & _within(qpos[:, 2:], c.healthy_state).all(1) & _within(qvel, c.healthy_state).all(1)


class Hopper(PlanarLegs[HopperConfig]):
    """Hop forward on one leg."""

    Config = HopperConfig
    model_file = "hopper.xml"


class Walker2d(PlanarLegs[Walker2dConfig]):
    """Walk forward on two legs."""

    Config = Walker2dConfig
    model_file = "walker2d_v5.xml"


def _within(values: torch.Tensor, bounds: tuple[float, float]) -> torch.Tensor:
    return (values > bounds[0]) & (values < bounds[1])
