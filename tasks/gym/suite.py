"""What the tasks of Gymnasium's MuJoCo v5 suite share.

Reward terms carry the names of Gymnasium's ``info`` keys, and a term times its weight is the value Gymnasium reports.
Derived quantities (body positions, inertias, forces) are those that ``mj_step`` leaves behind, a substep old, as
Gymnasium's are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import gymnasium
import mujoco
import torch

from sim.scene import from_file
from tasks.task import Task, TaskConfig, Terms

_MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


@dataclass(kw_only=True)
class GymConfig(TaskConfig):
    """Timing and start of a task; the defaults of each task are Gymnasium's."""

    reset_noise: float = 0.0
    """Size of the perturbation of the initial state: half-width where it is uniform, deviation where it is normal."""


GymConfigT = TypeVar("GymConfigT", bound=GymConfig)


class GymTask(Task[GymConfigT]):
    """A task on one of Gymnasium's own model files; actions are the actuators' controls, within their ranges."""

    model_file: str
    """Name of the model among Gymnasium's assets."""

    def model(self) -> mujoco.MjModel:
        model = from_file(_MODELS / self.model_file)
        model.opt.timestep = self.config.physics_dt
        return model

    def reset(self, ids: torch.Tensor) -> None:
        noise = self.config.reset_noise
        self.sim.qpos[ids] += self.uniform(-noise, noise, len(ids), self.sim.model.nq)
        self.sim.qvel[ids] = self.initial_velocity(len(ids))

    def initial_velocity(self, n: int) -> torch.Tensor:
        """Return initial velocities (n, nv), uniform within the reset noise."""
        noise = self.config.reset_noise
        return self.uniform(-noise, noise, n, self.sim.model.nv)

    def control_cost(self) -> torch.Tensor:
        """Return (N,) the sum of the squared actions."""
        return self.action.square().sum(1)


class PlanarTask(GymTask[GymConfigT]):
    """A task rewarded for the mean velocity, over the control step, of the first generalised coordinate."""

    def setup(self) -> None:
        self.x_before = self.buffer("x_before")

    def before_step(self) -> None:
        self.x_before.copy_(self.sim.qpos[:, 0])

    def rewards(self) -> Terms:
        return {
            "reward_forward": (self.sim.qpos[:, 0] - self.x_before) / self.config.control_dt,
            "reward_ctrl": self.control_cost(),
        }
