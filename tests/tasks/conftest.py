"""The smallest task there is: a mass on a frictionless rail, pushed by a motor."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mujoco
import pytest
import torch

from sim.mujoco_cpu import MujocoSimulation
from tasks.env import Env
from tasks.events import Event
from tasks.registry import make_task
from tasks.task import Task, TaskConfig, Terms, terms

RAIL = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"><flag autoreset="disable"/></option>
  <worldbody>
    <body name="mass">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom name="block" type="box" size="0.1 0.1 0.1" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor name="motor" joint="rail" ctrlrange="-10 10" ctrllimited="true"/></actuator>
</mujoco>
"""


@dataclass(kw_only=True)
class SliderConfig(TaskConfig):
    physics_dt: float = 0.01
    control_dt: float = 0.04
    episode_s: float = 400.0
    limit: float = math.inf
    weights: dict[str, float] = terms(position=2.0, speed=-0.5)


class Slider(Task[SliderConfig]):
    """World i starts at 0 with velocity (i + 1) / 10 m/s and fails beyond the limit."""

    Config = SliderConfig
    events: Iterable[Event] = ()

    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(RAIL)

    def observe(self) -> dict[str, Terms]:
        policy = {"position": self.sim.qpos[:, 0], "velocity": self.sim.qvel, "last_action": self.last_action}
        return {"policy": policy, "critic": policy | {"time": self.sim.time}}

    def rewards(self) -> Terms:
        return {"position": self.sim.qpos[:, 0], "speed": self.sim.qvel[:, 0].abs()}

    def terminations(self) -> Terms:
        return {"far": self.sim.qpos[:, 0] > self.config.limit}

    def metrics(self) -> Terms:
        return {"speed": self.sim.qvel[:, 0]}

    def randomise(self) -> Iterable[Event]:
        return self.events

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qvel[ids, 0] = (ids + 1).double() / 10


@pytest.fixture(scope="session")
def slider_class() -> type[Slider]:
    return Slider


@pytest.fixture(scope="session")
def slider() -> Callable[..., Env]:
    """Make the environment: ``slider(worlds, events=(), seed=0, cls=Slider, **config)``."""

    def make(
        worlds: int = 3, events: Iterable[Event] = (), seed: int = 0, cls: type[Slider] = Slider, **config: Any
    ) -> Env:
        task = cls(SliderConfig(**config))
        task.events = events
        return Env(task, MujocoSimulation(task.model(), worlds, threads=1), seed)

    return make


@pytest.fixture(scope="session")
def env_of() -> Callable[..., Env]:
    """Make a registered environment: ``env_of(name, worlds=4, seed=0, **overrides)``."""

    def make(name: str, worlds: int = 4, seed: int = 0, **overrides: Any) -> Env:
        task = make_task(name, **overrides)
        return Env(task, MujocoSimulation(task.model(), worlds, threads=1), seed)

    return make
