"""Each preset solves its task as it stands."""

import dataclasses
import re
from time import perf_counter
from typing import Any

import pytest

from robolearn.algorithms.registry import algorithm_class
from robolearn.evaluation import evaluate
from robolearn.presets import PRESETS
from robolearn.training import default_config, make_env
from tasks.registry import names


def _train(task: str, seed: int = 0) -> tuple[dict[str, Any], float]:
    """Train with the preset; return an evaluation over 32 episodes and the seconds of training."""
    config = default_config(task, seed=seed)
    env = make_env(config)
    algorithm = algorithm_class(config.algo)(env, config.algorithm, seed)
    start, total = perf_counter(), -(-config.steps // algorithm.steps_per_iteration)
    for iteration in range(total):
        algorithm.collect(env)
        algorithm.update(iteration / total)
    seconds = perf_counter() - start
    judge = make_env(config, num_envs=32, seed=seed + 1)
    return evaluate(lambda obs: algorithm.policy.act(obs, deterministic=True), judge, 32), seconds


def test_presets_are_for_tasks_that_exist_and_fit_their_configs() -> None:
    for algorithm, presets in PRESETS.items():
        for task in presets:
            # Gymnasium's ids end in a version, and no task of ours does.
            sim = "gymnasium" if re.search(r"-v\d+$", task) else "mujoco"
            assert sim == "gymnasium" or task in names()
            config = default_config(task, algorithm, sim=sim).algorithm
            assert dataclasses.is_dataclass(config)
            for name, value in presets[task].get("algorithm", {}).items():
                assert getattr(config, name) == value


def test_cartpole_balance_is_solved() -> None:
    result, _ = _train("CartPole-Balance")
    # 500 steps of at most 1.2: the pole up and the cart near the middle of the rail throughout.
    assert result["fell"] == 0.0
    assert result["return"] > 585


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("task", "solved"),
    [
        ("CartPole-Balance", 585),  # of 600
        ("CartPole-Swingup", 480),  # of 600, of which the swing itself costs about 70
        ("Pendulum-Swingup", -250),  # Gymnasium's Pendulum-v1, where PPO's published score is -172
    ],
)
def test_small_tasks_are_solved_in_under_a_minute(task: str, solved: float, seed: int) -> None:
    result, seconds = _train(task, seed)
    assert result["return"] > solved
    assert seconds < 60
