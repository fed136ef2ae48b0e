"""From named reward terms to one reward, logged by name."""

from typing import Any

import torch

from sim.errors import UserError, unknown
from tasks.task import Task


class Rewards:
    """Weighs and adds a task's reward terms: ``reward = sum of weight * term``, for each control step."""

    def __init__(self, task: Task[Any]):
        """Check the terms once.

        Raises:
            UserError: a term has the wrong shape or no weight, or a weight is set for a term that does not exist.
        """
        self._task = task
        n, weights = task.sim.num_worlds, task.config.weights
        terms = task.rewards()
        for name, value in terms.items():
            if tuple(value.shape) != (n,):
                raise UserError(f"reward term {name} has shape {tuple(value.shape)}; it must be ({n},)")
            if name not in weights:
                raise UserError(f"reward term {name} has no weight; add weights.{name} to the config")
        for name in weights:
            if name not in terms:
                raise unknown("reward term", name, terms, "weights")
        self.names = list(terms)
        """The terms, in order."""
        self.weights = torch.tensor([weights[name] for name in self.names], dtype=torch.float64, device=task.sim.device)
        """(K,) weight of each term."""
        self.episode_sums = torch.zeros(len(self.names), n, dtype=torch.float64, device=task.sim.device)
        """(K, N) sum of each weighted term over the episode so far."""

    def compute(self, step: int, diverged: torch.Tensor | None) -> torch.Tensor:
        """Return the reward (N,) float32; a term counts 0 in the worlds marked in ``diverged`` (N,).

        The number of the step is for the message of an error.

        Raises:
            UserError: a term of another world is not finite.
        """
        terms = self._task.rewards()
        stacked = torch.stack([value.double() for value in terms.values()])
        if diverged is not None:
            stacked = torch.where(diverged, 0.0, stacked)
        if not torch.isfinite(stacked).all():
            row, world = (~torch.isfinite(stacked)).nonzero()[0].tolist()
            raise UserError(f"reward term {self.names[row]} is not finite in world {world} at step {step}: "
                            f"{stacked[row, world].item()}")  # fmt: skip
        weighted = stacked * self.weights[:, None]
        self.episode_sums += weighted
        return weighted.sum(0).float()

    def reset(self, ids: torch.Tensor) -> None:
        """Forget the sums of the worlds ``ids`` (n,)."""
        self.episode_sums[:, ids] = 0

    def episode_means(self, ids: torch.Tensor) -> dict[str, float]:
        """Return the mean over the worlds ``ids`` (n,) of each term's sum over the episode, and of the return."""
        sums = self.episode_sums[:, ids].mean(1)
        log = {f"reward/{name}": value for name, value in zip(self.names, sums.tolist(), strict=True)}
        return {"episode/return": float(sums.sum()), **log}
