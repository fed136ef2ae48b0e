"""Wall clock to a return on HalfCheetah: our PPO against Stable-Baselines3's with the zoo's tuned settings."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch

from robolearn.algorithms.registry import algorithm_class
from robolearn.evaluation import evaluate
from robolearn.training import collect, default_config, make_env, update

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


def ours(steps: int, every: int, seed: int = 0, threads: int = 0) -> Iterator[Point]:
    """Train with the preset and yield an evaluation every so many environment steps."""
    config = default_config("HalfCheetah", "ppo", seed=seed, threads=threads, steps=steps)
    env, judge = make_env(config), make_env(config, num_envs=EPISODES, seed=seed + 1000)
    algorithm = algorithm_class("ppo")(env, config.algorithm, seed)
    total, done, seconds, due = steps // algorithm.steps_per_iteration, 0, 0.0, every
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


def stable_baselines3(steps: int, every: int, seed: int = 0) -> Iterator[Point]:
    """Train Stable-Baselines3's PPO on Gymnasium's environment with the zoo's settings, evaluated in the same way."""
    import gymnasium
    import numpy as np
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("HalfCheetah-v5")]), gamma=0.98)
    judge = gymnasium.make("HalfCheetah-v5")
    model = PPO(
        "MlpPolicy", env, n_steps=512, batch_size=64, n_epochs=20, gamma=0.98, gae_lambda=0.92, clip_range=0.1,
        learning_rate=2.0633e-05, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8, seed=seed, device="cpu",
        policy_kwargs={"log_std_init": -2.0, "ortho_init": False, "activation_fn": torch.nn.ReLU,
                       "net_arch": {"pi": [256, 256], "vf": [256, 256]}},
    )  # fmt: skip
    seconds = 0.0
    for part in range(steps // every):
        start = perf_counter()
        model.learn(every, reset_num_timesteps=part == 0)
        seconds += perf_counter() - start
        returns = []
        for episode in range(EPISODES):
            obs, _ = judge.reset(seed=seed + 1000 + episode)
            total, over = 0.0, False
            while not over:
                action, _ = model.predict(env.normalize_obs(obs), deterministic=True)
                obs, reward, terminated, truncated, _ = judge.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        yield Point(model.num_timesteps, seconds, float(np.mean(returns)))


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
