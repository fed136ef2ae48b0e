"""A run of two iterations on the quadruped and its export; a task whose value is known."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mujoco
import pytest
import torch

from robolearn import exporting
from robolearn import run as runs
from robolearn.training import default_config, train
from sim.backends import make_simulation
from tasks.env import Env
from tasks.task import Task, TaskConfig, Terms, terms

_POINT = """<mujoco><option timestep="0.1"><flag autoreset="disable"/></option>
<worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>"""


@dataclass(kw_only=True)
class ConstantConfig(TaskConfig):
    physics_dt: float = 0.1
    control_dt: float = 0.1
    episode_s: float = 1.0
    weights: dict[str, float] = terms(one=1.0)


class Constant(Task[ConstantConfig]):
    """A reward of 1 for ever, cut off every ten steps; the observation tells nothing."""

    Config = ConstantConfig

    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(_POINT)

    def observe(self) -> dict[str, Terms]:
        nothing = {"nothing": torch.ones(self.sim.num_worlds)}
        return {"policy": nothing, "critic": nothing}

    def rewards(self) -> Terms:
        return {"one": torch.ones(self.sim.num_worlds)}


@pytest.fixture(scope="session")
def constant_env() -> Callable[..., Env]:
    """Make the environment of a constant reward: ``constant_env(worlds, reward=1.0)``."""

    def make(worlds: int, reward: float = 1.0) -> Env:
        task = Constant(ConstantConfig(weights={"one": reward}))
        return Env(task, make_simulation("mujoco", task.model(), worlds, threads=1))

    return make


@pytest.fixture(scope="session")
def go2_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the run; tests must not change it."""
    config = default_config("Go2-Velocity-Flat", num_envs=16, steps=2 * 24 * 16, threads=1)
    run = runs.create(tmp_path_factory.mktemp("runs"), config.task, config.algo, config, config.seed, config.device)
    train(config, run)
    return run.path


@pytest.fixture(scope="session")
def go2_onnx(go2_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported file; tests must not change it."""
    return exporting.export(go2_run, tmp_path_factory.mktemp("export") / "policy.onnx")
