"""How fast simulation and learning are on this machine, measured beside the raw engine in the same run."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from mujoco import batch as mujoco_batch

from robolearn.algorithms.registry import algorithm_class
from robolearn.environments import worlds_of
from robolearn.training import TrainConfig, collect, make_env, update
from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from tasks.env import Env


@dataclass(frozen=True)
class SimRates:
    """Physics steps per second over all worlds; medians over rounds in which the two take turns."""

    env: float
    """Of ``Env.step``: observations, rewards, resets and everything else of the task included."""
    raw: float
    """Of ``mujoco.batch`` alone, from the same states under the same controls."""
    ratio: float
    """Of the two, round by round."""


def simulation_rates(config: TrainConfig, steps: int = 100, rounds: int = 5) -> SimRates:
    """Measure stepping of a task under random actions.

    Args:
        config: the task, the number of worlds and of threads; its backend must be ``mujoco``.
        steps: control steps in a round.
        rounds: rounds that count; one before them does not.

    Raises:
        UserError: another backend, which has no raw engine to be measured beside.
    """
    if config.sim != "mujoco":
        raise UserError(f"bench sim measures the backend mujoco, not {config.sim}")
    torch.set_num_threads(1)
    env = worlds_of(make_env(config), "bench sim")
    assert isinstance(env.sim, MujocoSimulation)
    raw = mujoco_batch.Batch(env.sim.model, nsim=env.num_envs, nthread=env.sim.threads)
    qpos, qvel, ctrl = (torch.from_numpy(raw.bind(field)) for field in ("qpos", "qvel", "ctrl"))
    env.reset()
    decimation = env.cfg.decimation
    physics_steps = steps * decimation * env.num_envs
    rates = []
    for _ in range(rounds + 1):
        env_seconds = raw_seconds = 0.0
        for action in _random_actions(env, steps):
            # Step by step from the same states: worlds that the task resets would else lie on the ground in the raw
            # engine, where more contacts cost more.
            qpos.copy_(env.sim.qpos)
            qvel.copy_(env.sim.qvel)
            began = perf_counter()
            env.step(action)
            env_seconds += perf_counter() - began
            ctrl.copy_(env.sim.ctrl)
            began = perf_counter()
            raw.step(nstep=decimation)
            raw_seconds += perf_counter() - began
        rates.append((physics_steps / env_seconds, physics_steps / raw_seconds))
    counted = rates[1:]
    return SimRates(median(a for a, _ in counted), median(b for _, b in counted), median(a / b for a, b in counted))


@dataclass(frozen=True)
class LearnRates:
    """Environment steps per second over all worlds; medians over iterations."""

    collect: float
    """Of gathering experience alone."""
    update: float
    """Of learning from it alone."""
    total: float
    """Of both, one after the other, as in a training."""
    update_share: float
    """Share of the time that is spent learning."""


def learning_rates(config: TrainConfig, iterations: int = 5) -> LearnRates:
    """Measure the parts of a training.

    Args:
        config: what would be trained.
        iterations: iterations that count; one before them does not.
    """
    env = make_env(config)
    algorithm = algorithm_class(config.algo)(env, config.algorithm, config.seed)
    times = []
    for i in range(iterations + 1):
        start = perf_counter()
        collect(algorithm, env)
        middle = perf_counter()
        update(algorithm, i / (iterations + 1), config.torch_threads)
        times.append((middle - start, perf_counter() - middle))
    collecting, updating = (median(column) for column in zip(*times[1:], strict=True))
    n = algorithm.steps_per_iteration
    whole = collecting + updating
    return LearnRates(n / collecting, n / updating, n / whole, updating / whole)


def _random_actions(env: Env, steps: int) -> torch.Tensor:
    """Return actions (steps, N, A), uniform in the action space."""
    space = env.single_action_space
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    return low + (high - low) * torch.rand(steps, env.num_envs, len(low))
