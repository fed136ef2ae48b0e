"""Replay against brute force over the whole history."""

from typing import Any

import pytest
import torch

from robolearn.buffers.replay import Replay
from sim import memory
from sim.errors import UserError

CPU = torch.device("cpu")
GAMMA = 0.9
Step = dict[str, Any]


def _history(steps: int, worlds: int = 2) -> list[list[Step]]:
    """Return episodes of uneven length: observation ``1000 world + t``, and what it leads to half a step later."""
    terminal = {(0, 3), (0, 4), (0, 11), (1, 6), (1, 20)}
    cut = {(0, 7), (1, 2), (1, 12), (0, 19)}
    return [
        [
            {
                "obs": 1000.0 * w + t,
                "next": 1000.0 * w + t + 0.5,
                "reward": 10.0**w * (t + 1),
                "terminated": (w, t) in terminal,
                "truncated": (w, t) in cut,
            }
            for w in range(worlds)
        ]
        for t in range(steps)
    ]


def _filled(history: list[list[Step]], room: int, n: int) -> Replay:
    worlds = len(history[0])
    replay = Replay(room * worlds, worlds, {"obs": 1, "next_obs": 1}, CPU, n_steps=n, gamma=GAMMA)
    for step in history:
        column = {name: torch.tensor([world[name] for world in step]) for name in step[0]}
        fields = {"obs": column["obs"][:, None], "next_obs": column["next"][:, None]}
        replay.add(fields, column["reward"], column["terminated"], column["truncated"])
    return replay


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("steps", [1, 5, 15, 16, 17, 24, 40])
def test_every_start_equals_the_brute_force_sum_before_and_after_the_ring_wraps(n: int, steps: int) -> None:
    room = 16
    history = _history(steps)
    replay = _filled(history, room, n)
    kept = min(steps, room)
    assert len(replay) == kept * 2
    for age in range(kept):
        for world in range(2):
            start = steps - kept + age
            reward, k = 0.0, 0
            for t in range(start, min(start + n, steps)):
                now = history[t][world]
                reward, k = reward + GAMMA**k * now["reward"], k + 1
                if now["terminated"] or now["truncated"]:
                    break
            last = history[start + k - 1][world]
            batch = replay.transitions(torch.tensor([age]), torch.tensor([world]))
            assert batch.fields["obs"].item() == history[start][world]["obs"]
            assert batch.fields["next_obs"].item() == last["next"]
            assert batch.steps.item() == k
            assert batch.reward.item() == pytest.approx(reward, rel=1e-6)
            assert batch.discount.item() == pytest.approx(0.0 if last["terminated"] else GAMMA**k, rel=1e-6)


def test_every_stored_step_is_drawn_as_often() -> None:
    replay = _filled(_history(20), 16, 3)
    draws = 32_000
    drawn = torch.cat([replay.sample(32).fields["obs"][:, 0] for _ in range(draws // 32)])
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == [1000.0 * w + t for w in range(2) for t in range(4, 20)]
    # Each count is binomial with standard deviation sqrt(1000): five of them.
    assert (counts - draws / 32).abs().max() < 5 * 1000**0.5


def test_a_batch_larger_than_what_is_stored_is_refused() -> None:
    replay = _filled(_history(3), 16, 1)
    with pytest.raises(UserError, match="batch of 7 transitions was asked for, and the replay holds 6"):
        replay.sample(7)


def test_a_replay_without_room_for_a_window_is_refused() -> None:
    with pytest.raises(UserError, match="no room for 5 steps of 4 worlds"):
        Replay(16, 4, {"obs": 1}, CPU, n_steps=5)


def test_a_replay_larger_than_the_free_memory_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    row = torch.zeros(1, 100)
    flag = torch.zeros(1)
    with pytest.raises(UserError) as caught:
        Replay(10**13, 1, {"obs": 100}, CPU)
    # 103 float32 numbers and a flag in each row.
    assert "a replay of 10,000,000,000,000 transitions needs 4130000.0 GB and cpu has" in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(memory, "free_memory", lambda device: 412)
    with pytest.raises(UserError):
        Replay(1, 1, {"obs": 100}, CPU)
    monkeypatch.setattr(memory, "free_memory", lambda device: 413)
    replay = Replay(1, 1, {"obs": 100}, CPU)
    monkeypatch.setattr(memory, "free_memory", lambda device: 412)  # taken by somebody else meanwhile
    with pytest.raises(UserError):
        replay.add({"obs": row}, flag, flag, flag)
    monkeypatch.setattr(memory, "free_memory", lambda device: 413)
    replay.add({"obs": row}, flag, flag, flag)


@pytest.mark.parametrize("steps", [5, 16, 21])
def test_the_ring_goes_on_where_it_was(steps: int) -> None:
    history = _history(40)
    whole = _filled(history[:steps], 16, 3)
    whole.sample(4)
    state = {
        name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in whole.state_dict().items()
    }
    other = Replay(32, 2, {"obs": 1, "next_obs": 1}, CPU, seed=9, n_steps=3, gamma=GAMMA)
    other.load_state_dict(state)
    for replay in (whole, other):
        for step in history[steps:]:
            column = {name: torch.tensor([world[name] for world in step]) for name in step[0]}
            fields = {"obs": column["obs"][:, None], "next_obs": column["next"][:, None]}
            replay.add(fields, column["reward"], column["terminated"], column["truncated"])
    ours, theirs = whole.sample(8), other.sample(8)
    assert torch.equal(ours.reward, theirs.reward)
    assert torch.equal(ours.discount, theirs.discount)
    for name, values in ours.fields.items():
        assert torch.equal(values, theirs.fields[name])


def test_a_saved_ring_of_another_shape_is_refused() -> None:
    state = _filled(_history(10), 16, 1).state_dict()
    with pytest.raises(ValueError, match="does not fit"):
        Replay(32, 4, {"obs": 1, "next_obs": 1}, CPU).load_state_dict(state)
    with pytest.raises(ValueError, match="does not fit"):
        Replay(8, 2, {"obs": 1, "next_obs": 1}, CPU).load_state_dict(state)
