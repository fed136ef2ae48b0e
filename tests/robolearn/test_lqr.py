"""A linear system with a quadratic cost, whose best policy the Riccati equation gives."""

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robolearn.algorithms.ppo import PPO, PPOConfig
from robolearn.algorithms.surrogates import SURROGATES
from robolearn.algorithms.trpo import TRPO, TRPOConfig
from sim.backends import make_simulation
from tasks.env import Env
from tasks.task import Task, TaskConfig, Terms, terms

DT = 0.2
GAMMA = 0.8
COST = {"position": 1.0, "velocity": 0.1, "effort": 0.1}
_POINT = f"""<mujoco><option timestep="{DT}"><flag autoreset="disable"/></option>
<worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor joint="x" ctrlrange="-20 20"/></actuator></mujoco>"""


@dataclass(kw_only=True)
class _Config(TaskConfig):
    physics_dt: float = DT
    control_dt: float = DT
    episode_s: float = 5 * DT  # short, so that most states are those of the resets and far from 0
    weights: dict[str, float] = terms(**{name: -weight for name, weight in COST.items()})


class _DoubleIntegrator(Task[_Config]):
    """A mass on a rail, pushed to the origin. The critic sees the quadratic terms that make its value exact."""

    Config = _Config

    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(_POINT)

    def observe(self) -> dict[str, Terms]:
        x, v = self.sim.qpos[:, 0], self.sim.qvel[:, 0]
        return {
            "policy": {"position": x, "velocity": v},
            "critic": {"quadratic": torch.stack((x, v, x * x, x * v, v * v), 1)},
        }

    def rewards(self) -> Terms:
        return {
            "position": self.sim.qpos[:, 0].square(),
            "velocity": self.sim.qvel[:, 0].square(),
            "effort": self.action.square().sum(1),
        }

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qpos[ids] = self.uniform(-1.0, 1.0, len(ids), 1)
        self.sim.qvel[ids] = self.uniform(-1.0, 1.0, len(ids), 1)


def _riccati() -> np.ndarray:
    """Return K (2,) of the best force, -K (x, v).

    The reward is of the state a step leads to, so its weight on a state is Q / gamma in the usual order of things.
    """
    # Semi-implicit: the velocity moves first.
    a = np.sqrt(GAMMA) * np.array([[1.0, DT], [0.0, 1.0]])
    b = np.sqrt(GAMMA) * np.array([[DT * DT], [DT]])
    q, r = np.diag([COST["position"], COST["velocity"]]) / GAMMA, COST["effort"]
    p = q
    for _ in range(1000):
        k = np.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
        p = q + a.T @ p @ (a - b @ k)
    return k[0]


def _gain(algorithm: PPO | TRPO) -> np.ndarray:
    """Return K (2,) of a linear policy."""
    with torch.no_grad():
        origin, *steps = algorithm.policy(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1]]))
    return np.array([float(origin - s) / 0.1 for s in steps])


def _env(episode_s: float = _Config.episode_s) -> Env:
    task = _DoubleIntegrator(_Config(episode_s=episode_s))
    return Env(task, make_simulation("mujoco", task.model(), 128, threads=1))


COMMON: dict[str, Any] = {
    "horizon": 10,
    "gamma": GAMMA,
    "hidden": (),  # linear, as the best policy is
    "initial_std": 0.1,
    "epochs": 8,
    "minibatches": 4,
    "learning_rate": 0.01,
}
ITERATIONS = 80


def _ppo(env: Env, surrogate: str) -> PPO:
    options: dict[str, Any] = {"entropy_coefficient": 0.0, "target_kl": 0.0, "learning_rate_decay": True}
    return PPO(env, PPOConfig(surrogate=surrogate, **options, **COMMON))


@pytest.mark.parametrize("name", [*SURROGATES, "trpo"])
def test_the_gain_is_that_of_the_riccati_equation(name: str) -> None:
    env = _env()
    algorithm = TRPO(env, TRPOConfig(**COMMON)) if name == "trpo" else _ppo(env, name)
    for i in range(ITERATIONS):
        algorithm.collect(env)
        algorithm.update(i / ITERATIONS)
    assert _gain(algorithm) == pytest.approx(_riccati(), rel=0.05)


def test_the_riccati_gain_is_the_best_in_the_simulation() -> None:
    """Guards the oracle: the return of the double integrator falls with any change of the gain."""

    def cost(gain: torch.Tensor) -> float:
        env = _env(episode_s=31 * DT)  # the rest weighs 0.8^30 = 0.1 %
        obs, _ = env.reset(seed=0)
        total = torch.zeros(env.num_envs)
        for t in range(env.max_episode_length - 1):
            obs, reward, _, _, _ = env.step(-(obs["policy"] @ gain)[:, None])
            total += GAMMA**t * reward
        return -float(total.mean())

    best = torch.from_numpy(_riccati()).float()
    for change in ([1.2, 1.0], [0.8, 1.0], [1.0, 1.2], [1.0, 0.8]):
        assert cost(best * torch.tensor(change)) > cost(best)
