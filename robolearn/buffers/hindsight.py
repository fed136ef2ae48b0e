"""Hindsight experience replay: what was achieved, taken for what was asked (Andrychowicz et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import torch

from robolearn.buffers.replay import Batch, Replay
from sim.errors import UserError
from tasks.goal import Goal
from tasks.vector_env import VectorEnv


class HindsightReplay(Replay):
    """A replay that asks, in a share of every batch, for a goal that the same episode achieved later on.

    The goal is the one achieved at a step drawn evenly from the transition's own to the last one stored of its episode
    (the strategy "future"); an episode that still runs, or whose beginning is overwritten, has what is stored of it.
    The reward is computed anew, and so is the end of the episode where the goal decides it.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        sizes: Mapping[str, int],
        device: torch.device,
        goal: Goal,
        share: float,
        seed: int = 0,
        gamma: float = 0.99,
    ):
        """Describe the memory.

        Args:
            capacity: as for `Replay`, like all that is not named here.
            num_envs: N.
            sizes: of which ``policy`` and ``next_policy`` hold the goals.
            device: where it lives.
            goal: where they are in these, and what reaching them is worth.
            share: of a batch's transitions that are given another goal, 0 to 1.
            seed: of the generator.
            gamma: discount factor.

        Raises:
            UserError: there is no room for a step of every world.
        """
        super().__init__(capacity, num_envs, sizes, device, seed, gamma=gamma)
        self.goal, self.share = goal, share
        self.to_end = torch.zeros(self.steps, num_envs, dtype=torch.int64, device=device)
        """By row and world, the number of steps from there to the last of the episode, once that has ended."""
        self.running = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """(N,) number of steps stored of the running episode."""

    def add(
        self,
        fields: Mapping[str, torch.Tensor],
        reward: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        valid: torch.Tensor | None = None,
    ) -> None:
        row = self.position
        super().add(fields, reward, terminated, truncated, valid)
        if valid is not None:  # an episode that breaks off has its last step in the row before
            self._end(~valid, row - 1)
        self.running.add_(1).clamp_(max=self.steps)
        self._end(terminated | truncated, row)
        if valid is not None:
            self.running[~valid] = 0

    def _end(self, ended: torch.Tensor, row: int) -> None:
        """Note that the running episode of the worlds marked in ``ended`` (N,) has its last step in a row."""
        ids = ended.nonzero().squeeze(1)
        if len(ids):
            length = self.running[ids]
            back = torch.arange(int(length.max()), device=self.device)[:, None].expand(-1, len(ids))
            inside = back < length
            self.to_end[((row - back) % self.steps)[inside], ids.expand_as(back)[inside]] = back[inside]
            self.running[ids] = 0

    def sample(self, batch_size: int) -> Batch:
        age, world = self.draw(batch_size)
        batch = self.transitions(age, world)
        share = round(self.share * batch_size)
        if share:
            fraction = torch.rand(share, generator=self.generator, device=self.device)
            self._relabel(batch, self.achieved(age[:share], world[:share], fraction))
        return batch

    def achieved(self, age: torch.Tensor, world: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
        """Return goals (B, g) that were achieved from steps ``age`` (B,) of the worlds ``world`` (B,) on.

        Args:
            age: 0 for the oldest step stored.
            world: of it.
            fraction: (B,) in [0, 1), how far on the way to the last stored step of the same episode.
        """
        assert self.storage is not None
        row = (self.position - self.size + age) % self.steps
        newer = self.size - 1 - age
        left = torch.where(newer < self.running[world], newer, self.to_end[row, world])
        # In float32 the largest fraction below 1, times a large number, is that number.
        ahead = torch.minimum((fraction * (left + 1)).long(), left)
        start = self.slices["next_policy"].start
        columns = slice(start + self.goal.achieved.start, start + self.goal.achieved.stop)
        return self.storage[(row + ahead) % self.steps, world][:, columns]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.running.fill_(self.size)
        if self.storage is None:
            return
        age = torch.arange(self.size, device=self.device)
        rows = (self.position - self.size + age) % self.steps
        ended, broken = self.storage[rows][..., -2:].sum(-1) > 0, ~self.valid[rows]
        ended |= broken
        ended[:-1] |= broken[1:]
        # From the newest to the oldest: the age of the last end seen, the next one in time.
        end = torch.where(ended, age[:, None], self.size).flip(0).cummin(0).values.flip(0)
        self.to_end[rows] = end - age[:, None]
        self.running -= torch.where(ended, age[:, None] + 1, 0).amax(0)

    def _relabel(self, batch: Batch, goals: torch.Tensor) -> None:
        """Ask for goals (n, g) in the first n transitions of a batch."""
        n = len(goals)
        for name in ("policy", "next_policy"):
            batch.fields[name][:n, self.goal.desired] = goals
        achieved = batch.fields["next_policy"][:n, self.goal.achieved]
        batch.reward[:n] = self.goal.reward(achieved, goals)
        if self.goal.terminated is not None:
            batch.discount[:n] = self.gamma * (~self.goal.terminated(achieved, goals)).float()


def goal_of(env: VectorEnv) -> Goal:
    """Return the goal of an environment that hindsight replay can work with.

    Raises:
        UserError: it has none, or its critic sees what the goal's columns do not describe.
    """
    if env.goal is None:
        raise UserError("replay her needs a task with a goal and compute_reward(achieved, desired, info), "
                        "and this one has none; use --algorithm.replay uniform")  # fmt: skip
    if not env.one_observation:
        raise UserError("replay her needs a policy and a critic that see the same, and in this task they do not")
    return env.goal
