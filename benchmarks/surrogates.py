"""``python -m benchmarks.surrogates``: SPO, BPO, R2VPO and MDPO against clip, same seeds, networks and settings.

Prints the return and how far the policy moves in an update, as measured. The learning rate is fixed: adapted to the
divergence, it would hide what the surrogates do about it.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from robolearn.algorithms.ppo import PPO
from robolearn.algorithms.surrogate import Sample
from robolearn.evaluation import evaluate
from robolearn.log import print_table
from robolearn.policies.gaussian import kl_divergence
from robolearn.training import default_config, make_env

TASKS = {"CartPole-Swingup": 300_000, "Pendulum-Swingup": 400_000, "HalfCheetah": 500_000}
"""Environment steps of each training."""
SURROGATES = ("clip", "spo", "bpo", "r2vpo", "mdpo")
"""The first is what the others are compared with."""
SEEDS = 5
SETTINGS: dict[str, Any] = {"target_kl": 0.0, "learning_rate": 3e-4, "epochs": 10}
EPISODES = 50
"""Deterministic episodes behind each return."""
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles of Student's t distribution of 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Result:
    """One training."""

    score: float
    """Mean return of the deterministic policy at the end."""
    ratio: float
    """Largest |ratio - 1| of an update, the mean over all updates."""
    worst_ratio: float
    """The largest of the whole training."""
    kl: float
    """Largest mean KL divergence of a minibatch in an update, the mean over all updates."""


class Distances:
    """Watches a surrogate and keeps how far the ratios and the policy went in the present update."""

    def __init__(self, surrogate: nn.Module):
        self.ratio = self.kl = 0.0
        surrogate.register_forward_pre_hook(self._see)

    def take(self) -> tuple[float, float]:
        """Return the largest |ratio - 1| and mean KL divergence since the last call."""
        largest, self.ratio, self.kl = (self.ratio, self.kl), 0.0, 0.0
        return largest

    @torch.no_grad()
    def _see(self, surrogate: nn.Module, arguments: tuple[Sample]) -> None:
        del surrogate
        (s,) = arguments
        self.ratio = max(self.ratio, float((s.ratio - 1).abs().max()))
        self.kl = max(self.kl, float(kl_divergence(s.old_mean, s.old_log_std, s.mean, s.log_std).mean()))


def measure(task: str, surrogate: str, seed: int, steps: int, episodes: int = EPISODES) -> Result:
    """Train once."""
    config = default_config(
        task, "ppo", seed=seed, threads=1, steps=steps, algorithm={**SETTINGS, "surrogate": surrogate}
    )
    env = make_env(config)
    algorithm = PPO(env, config.algorithm, seed)
    watched, distances = Distances(algorithm.surrogate), []
    total = math.ceil(steps / algorithm.steps_per_iteration)
    for iteration in range(total):
        algorithm.collect(env)
        algorithm.update(iteration / total)
        distances.append(watched.take())
    judge = make_env(config, num_envs=episodes, seed=seed + 1000)
    result = evaluate(lambda obs: algorithm.policy.act(obs, deterministic=True), judge, episodes)
    ratios, kls = zip(*distances, strict=True)
    return Result(result["return"], fmean(ratios), max(ratios), fmean(kls))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval (Student's t)."""
    return fmean(values), T_975[len(values) - 2] * stdev(values) / math.sqrt(len(values))


def rows(task: str, steps: int, seeds: int, episodes: int = EPISODES) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each surrogate, as soon as its trainings are done; needs 2 to 10 seeds."""
    reference: list[float] = []
    for surrogate in SURROGATES:
        results = [measure(task, surrogate, seed, steps, episodes) for seed in range(seeds)]
        scores = [r.score for r in results]
        reference = reference or scores
        mean, half = interval(scores)
        difference, half_difference = interval([a - b for a, b in zip(scores, reference, strict=True)])
        yield (
            surrogate,
            f"{mean:.0f} ± {half:.0f}",
            f"{difference:+.0f} ± {half_difference:.0f}",
            f"{fmean(r.ratio for r in results):.2f}",
            f"{max(r.worst_ratio for r in results):.2f}",
            f"{fmean(r.kl for r in results):.4f}",
        )


HEADER = ("surrogate", "return", "minus clip's", "|r - 1|", "worst |r - 1|", "KL")


def main(seeds: int = SEEDS) -> int:
    torch.set_num_threads(1)
    for task, steps in TASKS.items():
        print_table(f"{task}, {steps:,} steps, {seeds} seeds, 95 % intervals", HEADER, list(rows(task, steps, seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
