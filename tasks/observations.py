"""From named terms to the vectors that policies read."""

from typing import Any

import torch

from sim.errors import UserError, unknown
from tasks.task import Task, Terms


class Observations:
    """Concatenates a task's observation terms, group by group, and puts the configured noise on the policy's."""

    def __init__(self, task: Task[Any], generator: torch.Generator):
        """Check the terms once.

        Raises:
            UserError: a group is missing, a term has the wrong shape, or noise is set for a term that does not exist.
        """
        self._task, self._generator = task, generator
        groups = task.observe()
        for group in ("policy", "critic"):
            if group not in groups:
                raise UserError(f"{type(task).__name__}.observe returns no group {group!r}")
        self.terms = {group: _sizes(task, group, terms) for group, terms in groups.items()}
        """The size of each term by group and name, in order."""
        for name in task.config.noise:
            if name not in self.terms["policy"]:
                raise unknown("observation term", name, self.terms["policy"], "noise")
        amplitude = [task.config.noise.get(name, 0.0) for name in self.terms["policy"]]
        sizes = torch.tensor(list(self.terms["policy"].values()))
        self._amplitude = torch.tensor(amplitude, dtype=torch.float32).repeat_interleave(sizes).to(task.sim.device)
        self._noisy = any(amplitude)
        self.one = groups["policy"] is groups["critic"] and not self._noisy
        """Whether policy and critic always see the same."""

    def compute(
        self, step: int, previous: dict[str, torch.Tensor] | None = None, diverged: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the groups, each (N, D) float32; worlds marked in ``diverged`` (N,) keep their previous rows.

        The number of the step is for the message of an error.

        Raises:
            UserError: a term of another world is not finite.
        """
        groups = self._task.observe()
        out = {name: _concatenate(terms) for name, terms in groups.items()}
        if self._noisy:
            policy = out["policy"]
            noise = torch.rand(policy.shape, generator=self._generator, device=policy.device)
            out["policy"] = policy + (noise * 2 - 1) * self._amplitude
        if diverged is not None and previous is not None:
            out = {name: torch.where(diverged[:, None], previous[name], values) for name, values in out.items()}
        for group, values in out.items():
            if not torch.isfinite(values.sum()):
                self._blame(step, group, groups[group], diverged)
        return out

    def _blame(self, step: int, group: str, terms: Terms, diverged: torch.Tensor | None) -> None:
        for name, value in terms.items():
            bad = (~torch.isfinite(value.float().reshape(len(value), -1))).any(1)
            if diverged is not None:
                bad &= ~diverged
            if bad.any():
                world = int(bad.nonzero()[0])
                raise UserError(f"observation term {group}.{name} is not finite in world {world} at step {step}: "
                                f"{value[world].tolist()}")  # fmt: skip


def _concatenate(terms: Terms) -> torch.Tensor:
    return torch.cat([t.reshape(len(t), -1) for t in terms.values()], 1).float()


def _sizes(task: Task[Any], group: str, terms: Terms) -> dict[str, int]:
    sizes = {}
    for name, value in terms.items():
        if value.dim() not in (1, 2) or len(value) != task.sim.num_worlds:
            raise UserError(f"observation term {group}.{name} has shape {tuple(value.shape)}; "
                            f"it must be ({task.sim.num_worlds},) or ({task.sim.num_worlds}, d)")  # fmt: skip
        sizes[name] = 1 if value.dim() == 1 else int(value.shape[1])
    return sizes
