"""Gradient steps alone, without stepping an environment: our SAC against Stable-Baselines3's, one torch thread each."""

import math
from collections.abc import Callable
from time import perf_counter

import gymnasium
import numpy as np
import torch

from robolearn.algorithms.offpolicy_presets import SAC
from robolearn.log import print_table
from sim.backends import make_simulation
from tasks.env import Env
from tasks.registry import make_task

ROWS = 2000
"""Transitions in the replay that batches are drawn from."""
OTHER = "Stable-Baselines3"
STEPS = 20
"""Gradient steps of one measurement."""


def rates(rounds: int = 10) -> dict[str, float]:
    """Return gradient steps a second of SAC, 256x256 networks and batches of 256, on HalfCheetah's sizes.

    The contestants take turns, and each is judged by its best round, so that whatever else the machine does falls on
    none of them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        contestants = {
            "robolearn float32": _ours("float32"),
            "robolearn bfloat16": _ours("bfloat16"),
            OTHER: _stable_baselines3(),
        }
        seconds = dict.fromkeys(contestants, math.inf)
        for _ in range(rounds):
            for name, learn in contestants.items():
                start = perf_counter()
                learn(STEPS)
                seconds[name] = min(seconds[name], perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return {name: STEPS / s for name, s in seconds.items()}


def _ours(precision: str) -> Callable[[int], None]:
    task = make_task("HalfCheetah")
    env = Env(task, make_simulation("mujoco", task.model(), 1, threads=1), 0)
    algorithm = SAC(env, SAC.Config(warmup=ROWS, iteration_steps=ROWS, capacity=ROWS, precision=precision))
    algorithm.collect(env)

    def learn(steps: int) -> None:
        for _ in range(steps):
            algorithm.gradient_step()

    return learn


def _stable_baselines3() -> Callable[[int], None]:
    from stable_baselines3 import SAC as Theirs

    model = Theirs("MlpPolicy", _Noise(), learning_starts=ROWS, buffer_size=ROWS, seed=0, device="cpu")
    model.learn(ROWS + 1)
    return lambda steps: model.train(steps, 256)


class _Noise(gymnasium.Env):
    """HalfCheetah's sizes without its physics, which fills a replay in no time."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._observation(), float(self.np_random.normal()), False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.normal(size=17).astype(np.float32)


def show() -> None:
    """Print the rates, and each as a multiple of the other library's."""
    measured = rates()
    rows = [(name, rate, rate / measured[OTHER]) for name, rate in measured.items()]
    print_table("SAC, gradient steps/s on one thread", ("learner", "steps/s", "ratio"), rows)


if __name__ == "__main__":
    show()
