"""Wall clock to a return on HalfCheetah: our algorithms against Stable-Baselines3's with the zoo's tuned settings."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import torch

from robolearn.algorithms.registry import algorithm_class
from robolearn.evaluation import evaluate
from robolearn.training import TrainConfig, collect, make_env, update

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

EPISODES = 10
"""Deterministic episodes behind each evaluation."""


@dataclass(frozen=True)
class Point:
    """One evaluation of a training."""

    steps: int
    """Environment steps taken."""
    seconds: float
    """Wall-clock time of training, evaluations not counted."""
    score: float
    """Mean return of the deterministic policy."""


def ours(config: TrainConfig, every: int) -> Iterator[Point]:
    """Train HalfCheetah and yield an evaluation every so many environment steps."""
    env = make_env(config)
    judge = make_env(config, num_envs=EPISODES, seed=config.seed + 1000)
    algorithm = algorithm_class(config.algo)(env, config.algorithm, config.seed)
    total, done, seconds, due = config.steps // algorithm.steps_per_iteration, 0, 0.0, every
    threads = torch.get_num_threads()  # which a training sets, and the other library's would then be held to
    try:
        while done < total:
            start = perf_counter()
            collect(algorithm, env)
            update(algorithm, done / total, config.torch_threads)
            done += 1
            seconds += perf_counter() - start
            taken = done * algorithm.steps_per_iteration
            if taken >= due or done == total:
                due += every
                result = evaluate(lambda obs: algorithm.policy.act(obs, deterministic=True), judge, EPISODES)
                yield Point(taken, seconds, result["return"])
    finally:
        torch.set_num_threads(threads)


def stable_baselines3(model: "BaseAlgorithm", steps: int, every: int) -> Iterator[Point]:
    """Train one of Stable-Baselines3's algorithms, evaluated in the same way."""
    judge, normalizer = gymnasium.make("HalfCheetah-v5"), model.get_vec_normalize_env()
    seconds = 0.0
    for part in range(steps // every):
        start = perf_counter()
        model.learn(every, reset_num_timesteps=part == 0)
        seconds += perf_counter() - start
        returns = []
        for episode in range(EPISODES):
            obs, _ = judge.reset(seed=1000 + episode)
            total, over = 0.0, False
            while not over:
                action, _ = model.predict(normalizer.normalize_obs(obs) if normalizer else obs, deterministic=True)
                obs, reward, terminated, truncated, _ = judge.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        yield Point(model.num_timesteps, seconds, float(np.mean(returns)))


def stable_baselines3_ppo(seed: int = 0) -> "BaseAlgorithm":
    """Return Stable-Baselines3's PPO on Gymnasium's environment with the zoo's settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("HalfCheetah-v5")]), gamma=0.98)
    return PPO(
        "MlpPolicy", env, n_steps=512, batch_size=64, n_epochs=20, gamma=0.98, gae_lambda=0.92, clip_range=0.1,
        learning_rate=2.0633e-05, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8, seed=seed, device="cpu",
        policy_kwargs={"log_std_init": -2.0, "ortho_init": False, "activation_fn": torch.nn.ReLU,
                       "net_arch": {"pi": [256, 256], "vf": [256, 256]}},
    )  # fmt: skip


def stable_baselines3_sac(seed: int = 0) -> "BaseAlgorithm":
    """Return Stable-Baselines3's SAC on Gymnasium's environment with the zoo's settings."""
    from stable_baselines3 import SAC

    return SAC("MlpPolicy", gymnasium.make("HalfCheetah-v5"), learning_starts=10_000, seed=seed, device="cpu")


def shown(points: Iterator[Point], name: str, until: float = math.inf) -> list[Point]:
    """Print each evaluation, and return them up to the first that reaches a score."""
    seen = []
    for point in points:
        print(f"  {name}: {point.steps:>9,} steps  {point.seconds:7.1f} s  return {point.score:8.1f}", flush=True)
        seen.append(point)
        if point.score >= until:
            break
    return seen


def first(points: list[Point], score: float) -> Point | None:
    """Return the first evaluation that reached a score, or None."""
    return next((point for point in points if point.score >= score), None)


def verdict(ours: list[Point], theirs: list[Point], score: float) -> str:
    """Say how much sooner our training reached a score than the other library's."""
    own, other = first(ours, score), first(theirs, score)
    if own is None:
        return f"robolearn did not reach {score:.0f} in {ours[-1].steps:,} steps"
    if other is None:
        return (f"robolearn {own.seconds:.0f} s; Stable-Baselines3 did not reach it in {theirs[-1].seconds:.0f} s: "
                f"more than {theirs[-1].seconds / own.seconds:.1f} times sooner")  # fmt: skip
    ratio = other.seconds / own.seconds
    return f"robolearn {own.seconds:.0f} s, Stable-Baselines3 {other.seconds:.0f} s: {ratio:.1f} times sooner"
