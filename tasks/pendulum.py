"""A torque-limited pendulum: swing it up."""

import math
from dataclasses import dataclass

import torch

from tasks.interface import Interface, Quantity
from tasks.task import RobotTask, RobotTaskConfig, Terms, terms


@dataclass(kw_only=True)
class PendulumConfig(RobotTaskConfig):
    """Timing and weights; the weights are those of Gymnasium's Pendulum-v1."""

    robot: str = "pendulum"
    physics_dt: float = 0.01
    control_dt: float = 0.05
    episode_s: float = 10.0
    weights: dict[str, float] = terms(angle=-1.0, velocity=-0.1, effort=-0.001)


class PendulumSwingup(RobotTask[PendulumConfig]):
    """Swing the pendulum up and hold it there with a torque too weak to lift it at once. The action is that torque."""

    Config = PendulumConfig

    def observe(self) -> dict[str, Terms]:
        angle = self.sim.qpos[:, 0]
        policy = {
            "direction": torch.stack((angle.cos(), angle.sin()), 1),  # (N, 2)
            "velocity": self.sim.qvel[:, 0],  # (N,) rad/s
        }
        return {"policy": policy, "critic": policy}

    def interface(self) -> Interface:
        return Interface(
            observation={
                "direction": Quantity(source="cosine and sine of the angle from upright"),
                "velocity": Quantity(source="joint_velocity", unit="rad/s", joints=self.description.joints),
            }
        )

    def rewards(self) -> Terms:
        angle = torch.remainder(self.sim.qpos[:, 0] + math.pi, 2 * math.pi) - math.pi
        return {
            "angle": angle.square(),
            "velocity": self.sim.qvel[:, 0].square(),
            "effort": self.action.square().sum(1),
        }

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qpos[ids] = self.uniform(-math.pi, math.pi, len(ids), 1)
        self.sim.qvel[ids] = self.uniform(-1.0, 1.0, len(ids), 1)
