"""PPO, TRPO and other surrogates held to solving the small tasks."""

from statistics import fmean
from typing import Any

import pytest

from robolearn.algorithms.registry import algorithm_class
from robolearn.evaluation import evaluate
from robolearn.training import collect, default_config, make_env, update

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PENDULUM: dict[str, Any] = {"steps": 100_000, "num_envs": 16, "algorithm": {"gamma": 0.9, "initial_std": 1.0}}
"""For so few steps: more updates of fewer worlds, the discount of the zoo's settings, and noise of half the range."""


def _score(task: str, algo: str, seed: int, **changes: Any) -> float:
    """Train with the preset and some changes; return the deterministic policy's mean return over 100 episodes."""
    config = default_config(task, algo, seed=seed, **changes)
    env = make_env(config)
    algorithm = algorithm_class(algo)(env, config.algorithm, seed)
    total = -(-config.steps // algorithm.steps_per_iteration)
    for iteration in range(total):
        collect(algorithm, env)
        update(algorithm, iteration / total, config.torch_threads)
    judge = make_env(config, num_envs=50, seed=seed + 1000)
    return evaluate(lambda obs: algorithm.policy.act(obs, deterministic=True), judge, 100)["return"]


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_pendulum_in_a_hundred_thousand_steps(algo: str) -> None:
    # Gymnasium's Pendulum-v1 but for its clip of the velocity at 8 rad/s; the zoo's PPO has -172 and its TRPO -175.
    assert fmean(_score("Pendulum-Swingup", algo, seed, **PENDULUM) for seed in range(5)) > -250


@pytest.mark.parametrize("algo", ["ppo", "trpo"])
def test_the_double_pendulum_stays_up(algo: str) -> None:
    assert fmean(_score("InvertedDoublePendulum", algo, seed) for seed in range(3)) > 8400  # of 9,360


@pytest.mark.parametrize("surrogate", ["spo", "bpo"])
def test_the_swing_up_is_solved_with_other_surrogates_too(surrogate: str) -> None:
    assert _score("CartPole-Swingup", "ppo", 0, algorithm={"surrogate": surrogate}) > 480


@pytest.mark.parametrize(("task", "solved"), [("CartPole-Swingup", 480), ("Pendulum-Swingup", -250)])
def test_trpo_solves_the_small_tasks(task: str, solved: float) -> None:
    assert _score(task, "trpo", 0) > solved
