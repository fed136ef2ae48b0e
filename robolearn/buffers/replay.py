"""Replay memory for many worlds at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sim.errors import UserError
from sim.memory import check_fits

_REWARD, _TERMINATED, _TRUNCATED = "reward", "terminated", "truncated"


@dataclass(frozen=True)
class Batch:
    """B transitions of k <= n steps each."""

    fields: dict[str, torch.Tensor]
    """By name, (B, d): what was stored at the first step, and under ``next_...`` what the last step led to."""
    reward: torch.Tensor
    """(B,) sum of gamma^i times the reward of step i."""
    discount: torch.Tensor
    """(B,) gamma^k; 0 where the last step terminated. A truncation leaves it as it is."""
    steps: torch.Tensor
    """(B,) k: fewer than n before the end of an episode and before the newest step."""


class Replay:
    """A ring of the last transitions of N worlds, in rows (steps, N, width) of one float32 tensor.

    The true last observation of each step is stored, so that no transition ever crosses an end or the write position.
    A row that is no step of an episode is kept, for the worlds step together, and never drawn or reached over. Memory
    is taken with the first transition.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        sizes: Mapping[str, int],
        device: torch.device,
        seed: int = 0,
        n_steps: int = 1,
        gamma: float = 0.99,
    ):
        """Describe the memory.

        Args:
            capacity: transitions, over all worlds.
            num_envs: N.
            sizes: size of a row of each field; a field of the observation after the step is called ``next_...``.
            device: where it lives.
            seed: of the generator that batches are drawn with.
            n_steps: n, the most steps that a sampled transition spans.
            gamma: discount factor.

        Raises:
            UserError: it has no room for n steps of every world, or does not fit into the memory that is free.
        """
        self.steps, self.num_envs, self.device = capacity // num_envs, num_envs, device
        if self.steps < n_steps:
            raise UserError(f"a replay of {capacity} transitions has no room for {n_steps} steps of {num_envs} worlds")
        self.n_steps, self.gamma = n_steps, gamma
        self.slices: dict[str, slice] = {}
        for name, size in {**sizes, _REWARD: 1, _TERMINATED: 1, _TRUNCATED: 1}.items():
            start = max((s.stop for s in self.slices.values()), default=0)
            self.slices[name] = slice(start, start + size)
        self.width = self.slices[_TRUNCATED].stop
        self._check_memory()
        self.position, self.size = 0, 0
        self.generator = torch.Generator(device).manual_seed(seed)
        self.storage: torch.Tensor | None = None
        self.valid = torch.ones(0, num_envs, dtype=torch.bool, device=device)
        """(steps, N) whether the row is a step of an episode, once there is memory."""
        self.invalid = 0
        """Number of rows stored that are none."""

    def __len__(self) -> int:
        """Return the number of transitions stored."""
        return self.size * self.num_envs - self.invalid

    def add(
        self,
        fields: Mapping[str, torch.Tensor],
        reward: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        valid: torch.Tensor | None = None,
    ) -> None:
        """Store one step of every world: fields (N, d), reward, terminated, truncated and valid (N,).

        All are valid if not given.

        Raises:
            UserError: the memory does not fit into what is free.
        """
        if self.storage is None:
            self.storage = self._allocate()
        row = self.storage[self.position]
        for name, values in fields.items():
            row[:, self.slices[name]] = values
        tail = (reward, terminated, truncated)
        row[:, -3:] = torch.stack([values.to(torch.float32) for values in tail], 1)
        if valid is not None or self.invalid:
            kept = self.valid[self.position]
            self.invalid -= int((~kept).sum())
            kept.copy_(torch.ones_like(kept) if valid is None else valid)
            self.invalid += int((~kept).sum())
        self.position = (self.position + 1) % self.steps
        self.size = min(self.size + 1, self.steps)

    def sample(self, batch_size: int) -> Batch:
        """Return transitions that start at any stored step, each as likely, drawn with replacement.

        Raises:
            UserError: fewer are stored than are asked for.
        """
        return self.transitions(*self.draw(batch_size))

    def draw(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ages and worlds, both (B,), of steps that transitions may start at, as `sample` draws them.

        Raises:
            UserError: fewer are stored than are asked for.
        """
        if batch_size > len(self):
            raise UserError(f"a batch of {batch_size} transitions was asked for, and the replay holds {len(self)}")
        age, world = self._draw(batch_size)
        while self.invalid and bool((refused := ~self._is_valid(age, world)).any()):
            age[refused], world[refused] = self._draw(int(refused.sum()))
        return age, world

    def transitions(self, age: torch.Tensor, world: torch.Tensor) -> Batch:
        """Return the transitions from steps ``age`` (B,) on, 0 the oldest stored, of the worlds ``world`` (B,)."""
        assert self.storage is not None
        flat = self.storage.view(-1, self.width)
        oldest = self.position - self.size
        first = flat[(oldest + age) % self.steps * self.num_envs + world]
        if self.n_steps == 1:
            reward, terminated, last = first[:, -3], first[:, -2], first
            discount, steps = self.gamma * (1 - terminated), torch.ones_like(reward)
        else:
            offsets = torch.arange(self.n_steps, device=self.device)
            indices = (oldest + age[:, None] + offsets) % self.steps * self.num_envs + world[:, None]
            tail = flat[:, -3:][indices]
            ended = tail[..., 1:].sum(-1)
            broken = (~self.valid.view(-1)[indices]).float()
            # Ends of episodes before each step of the window, and rows that are no steps up to it.
            before = (ended + broken).cumsum(1) - ended
            inside = (before == 0) & (age[:, None] + offsets < self.size)
            powers = self.gamma ** torch.arange(self.n_steps + 1, dtype=torch.float32, device=self.device)
            reward = torch.where(inside, tail[..., 0] * powers[:-1], 0.0).sum(1)
            k = inside.sum(1)
            last = flat[indices.gather(1, k[:, None] - 1).squeeze(1)]
            discount, steps = powers[k] * (1 - last[:, -2]), k.float()
        fields = {
            name: (last if name.startswith("next_") else first)[:, columns]
            for name, columns in self.slices.items()
            if columns.stop <= self.width - 3
        }
        return Batch(fields, reward, discount, steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored, as views, and the generator."""
        rows = torch.empty(0, self.num_envs, self.width) if self.storage is None else self.storage[: self.size]
        valid = self.valid[: self.size]
        return {"rows": rows, "valid": valid, "position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict`` of the same sizes and capacity.

        Raises:
            ValueError: it has other sizes, or more steps than there is room for.
            UserError: the memory does not fit into what is free.
        """
        rows = state["rows"]
        if rows.shape[1:] != (self.num_envs, self.width) or len(rows) > self.steps:
            ours = (self.steps, self.num_envs, self.width)
            raise ValueError(f"a replay of {tuple(rows.shape)} does not fit into one of {ours}")
        if len(rows):
            self.storage = self._allocate() if self.storage is None else self.storage
            self.storage[: len(rows)] = rows
            self.valid[: len(rows)] = state.get("valid", torch.ones(rows.shape[:2], dtype=torch.bool))
            self.invalid = int((~self.valid[: len(rows)]).sum())
        self.position, self.size = state["position"], len(rows)
        self.generator.set_state(state["generator"].cpu())

    def _draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(self.size * self.num_envs, (count,), generator=self.generator, device=self.device)
        return drawn // self.num_envs, drawn % self.num_envs

    def _is_valid(self, age: torch.Tensor, world: torch.Tensor) -> torch.Tensor:
        return self.valid[(self.position - self.size + age) % self.steps, world]

    def _check_memory(self) -> None:
        size = self.steps * self.num_envs * (4 * self.width + 1)
        what = f"a replay of {self.steps * self.num_envs:,} transitions"
        check_fits(what, size, self.device, "lower --algorithm.capacity")

    def _allocate(self) -> torch.Tensor:
        self._check_memory()
        self.valid = torch.ones(self.steps, self.num_envs, dtype=torch.bool, device=self.device)
        return torch.empty(self.steps, self.num_envs, self.width, device=self.device)
