"""Hindsight replay: goals against brute force, and a task that only hindsight solves."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import pytest
import torch

from robolearn.algorithms.offpolicy import OffPolicy
from robolearn.algorithms.offpolicy_config import OffPolicyConfig
from robolearn.algorithms.registry import algorithm_class
from robolearn.buffers.hindsight import HindsightReplay
from robolearn.evaluation import evaluate
from sim.backends import make_simulation
from tasks.env import Env
from tasks.goal import Goal
from tasks.task import Task, TaskConfig, Terms, terms

CPU = torch.device("cpu")
GAMMA = 0.9
Step = dict[str, Any]


def _near(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
    return (achieved - desired).abs().amax(-1) < 0.5


GOAL = Goal(slice(1, 3), slice(3, 5), lambda a, d: _near(a, d).float() - 1.0)
"""In an observation of a time, an achieved and a desired goal of two numbers."""


def _history(steps: int, worlds: int = 3) -> list[list[Step]]:
    """Return episodes of uneven length; every step of every world achieves what no other does."""
    terminal = {(0, 3), (0, 4), (0, 11), (1, 6), (1, 20)}
    cut = {(0, 7), (1, 2), (1, 12), (0, 19), (0, 35)}  # and none ever in the third world
    return [
        [
            {
                "policy": [t, 1000.0 * w + t, -t, 7.0, 7.0],
                "next_policy": [t + 1, 1000.0 * w + t + 1, -t - 1, 7.0, 7.0],
                "terminated": (w, t) in terminal,
                "truncated": (w, t) in cut,
            }
            for w in range(worlds)
        ]
        for t in range(steps)
    ]


def _add(replay: HindsightReplay, history: list[list[Step]]) -> None:
    for step in history:
        column = {name: torch.tensor([world[name] for world in step]) for name in step[0]}
        fields = {name: column[name] for name in ("policy", "next_policy")}
        replay.add(fields, torch.full((len(step),), -1.0), column["terminated"], column["truncated"])


def _filled(history: list[list[Step]], room: int, goal: Goal = GOAL, share: float = 0.8) -> HindsightReplay:
    worlds = len(history[0])
    replay = HindsightReplay(
        room * worlds, worlds, {"policy": 5, "next_policy": 5}, CPU, goal=goal, share=share, gamma=GAMMA
    )
    _add(replay, history)
    return replay


def _later(history: list[list[Step]], t: int, world: int) -> list[list[float]]:
    """Return the goals achieved from a step to the last of its episode, or the last there is."""
    goals = []
    for step in history[t:]:
        goals.append(step[world]["next_policy"][1:3])
        if step[world]["terminated"] or step[world]["truncated"]:
            break
    return goals


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 15, 16, 17, 24, 40])
def test_goals_are_those_of_the_rest_of_the_episode_before_and_after_the_ring_wraps(steps: int, loaded: bool) -> None:
    room = 16
    history = _history(steps)
    replay = _filled(history, room)
    if loaded:
        state, replay = replay.state_dict(), _filled(_history(1), room)
        replay.load_state_dict(state)
    kept = min(steps, room)
    for age in range(kept):
        for world in range(3):
            expected = _later(history, steps - kept + age, world)
            n = len(expected)
            where = torch.full((n,), age), torch.full((n,), world)
            # Just above and just below each n-th of the way.
            for fraction in (torch.arange(n) / n + 1e-4, (torch.arange(n) + 1) / n - 1e-4):
                assert replay.achieved(*where, fraction).tolist() == expected


def test_the_ring_goes_on_where_it_was() -> None:
    history = _history(40)
    for steps in (5, 16, 21):
        whole = _filled(history[:steps], 16)
        other = _filled(_history(1), 16)
        other.load_state_dict(copy.deepcopy(whole.state_dict()))
        for replay in (whole, other):
            _add(replay, history[steps:])
        ours, theirs = whole.sample(40), other.sample(40)
        assert torch.equal(ours.reward, theirs.reward)
        for name, values in ours.fields.items():
            assert torch.equal(values, theirs.fields[name])


def test_a_batch_is_relabelled_as_stated_and_leaves_the_rest_and_the_memory_alone() -> None:
    history = _history(24)
    replay = _filled(history, 16)
    before = replay.state_dict()["rows"].clone()
    batch = replay.sample(40)
    assert torch.equal(replay.state_dict()["rows"], before)
    policy, following = batch.fields["policy"], batch.fields["next_policy"]
    assert torch.equal(policy[:, GOAL.desired], following[:, GOAL.desired])
    assert torch.equal(policy[:, GOAL.achieved], following[:, GOAL.achieved] + torch.tensor([-1.0, 1.0]))
    for row in range(40):
        asked = policy[row, GOAL.desired].tolist()
        if row >= 32:  # four of five are relabelled
            assert asked == [7.0, 7.0]
            assert batch.reward[row] == -1.0
            continue
        t, world = int(policy[row, 0]), int(policy[row, 1]) // 1000
        assert asked in _later(history, t, world)
        assert batch.reward[row].item() == (0.0 if asked == following[row, GOAL.achieved].tolist() else -1.0)
        assert batch.discount[row].item() == pytest.approx(0.0 if history[t][world]["terminated"] else GAMMA)
    assert (batch.reward[:32] == 0.0).any()


def test_an_end_that_the_goal_decides_is_decided_anew() -> None:
    replay = _filled(_history(24), 16, replace(GOAL, terminated=_near), share=1.0)
    batch = replay.sample(48)
    reached = _near(batch.fields["next_policy"][:, GOAL.achieved], batch.fields["policy"][:, GOAL.desired])
    assert 0 < reached.sum() < 48
    torch.testing.assert_close(batch.discount, GAMMA * (~reached).float())


def test_the_goals_of_a_step_are_drawn_evenly() -> None:
    replay = _filled(_history(12)[8:12], 16)  # of the third world, four steps of an episode that still runs
    n = 40_000
    goals = replay.achieved(torch.zeros(n, dtype=torch.int64), torch.full((n,), 2), torch.rand(n))
    values, counts = goals[:, 0].unique(return_counts=True)
    assert values.tolist() == [2009.0, 2010.0, 2011.0, 2012.0]
    # Each count is binomial with standard deviation sqrt(n 3/16): five of them.
    assert (counts - n / 4).abs().max() < 5 * (n * 3 / 16) ** 0.5


_POINT = """<mujoco><option timestep="0.1"><flag autoreset="disable"/></option>
<worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="10"/>
<joint name="y" type="slide" axis="0 1 0" damping="10"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor joint="x" ctrlrange="-20 20"/><motor joint="y" ctrlrange="-20 20"/></actuator></mujoco>"""


@dataclass(kw_only=True)
class ReachConfig(TaskConfig):
    physics_dt: float = 0.1
    control_dt: float = 0.1
    episode_s: float = 3.0
    weights: dict[str, float] = terms(away=-1.0)


class Reach(Task[ReachConfig]):
    """A point in the plane that is to be within 0.1 m of a goal up to 2 m away on either axis."""

    Config = ReachConfig

    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(_POINT)

    def setup(self) -> None:
        self.asked = self.buffer("asked", 2)

    def observe(self) -> dict[str, Terms]:
        policy = {"velocity": self.sim.qvel.clone(), "achieved": self.sim.qpos.clone(), "desired": self.asked}
        return {"policy": policy, "critic": policy}

    def rewards(self) -> Terms:
        return {"away": (_distance(self.sim.qpos, self.asked) > 0.1).double()}

    def metrics(self) -> Terms:
        return {"near": (_distance(self.sim.qpos, self.asked) <= 0.1).double()}

    def goal(self) -> Goal:
        return Goal(slice(2, 4), slice(4, 6), lambda a, d: -(_distance(a, d) > 0.1).float())

    def reset(self, ids: torch.Tensor) -> None:
        self.asked[ids] = self.uniform(-2.0, 2.0, len(ids), 2)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).norm(dim=-1)


def _env(worlds: int = 1, seed: int = 0) -> Env:
    task = Reach(ReachConfig())
    return Env(task, make_simulation("mujoco", task.model(), worlds, threads=1), seed)


TINY: dict[str, Any] = {"hidden": (16, 16), "batch_size": 32, "warmup": 64, "iteration_steps": 50, "capacity": 256}


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "dsac", "fast_sac", "mdpo_off", "pmoe", "aro_ddpg"])
def test_every_off_policy_algorithm_learns_with_it(name: str) -> None:
    env = _env(3)
    made = algorithm_class(name)
    algorithm = made(env, made.Config(**TINY, replay="her"))
    algorithm.collect(env)
    assert algorithm.critic_steps > 0
    algorithm.update()  # refuses what is not finite
    # Drawn anew, what is stored is worth what the task paid for it.
    rows, columns = algorithm.replay.state_dict()["rows"], algorithm.replay.slices
    seen = rows[..., columns["next_policy"]].flatten(0, 1)
    goal = env.goal
    assert goal is not None
    assert torch.equal(goal.reward(seen[:, goal.achieved], seen[:, goal.desired]), rows[..., -3].flatten())


def test_resuming_continues_bit_for_bit() -> None:
    config = OffPolicyConfig(**TINY, replay="her")

    def made(seed: int) -> tuple[Env, OffPolicy]:
        env = _env(3, seed)
        return env, OffPolicy(env, config, seed)

    env, whole = made(0)
    expected = [whole.collect(env) | whole.update() for _ in range(6)]
    env, first = made(0)
    logged = [first.collect(env) | first.update() for _ in range(3)]
    saved, worlds = copy.deepcopy(first.state_dict()), copy.deepcopy(env.state_dict())
    env, second = made(5)
    second.load_state_dict(saved)
    env.load_state_dict(worlds)
    logged += [second.collect(env) | second.update() for _ in range(3)]
    assert logged == expected
    assert torch.equal(second.policy.network.flat, whole.policy.network.flat)
    torch.testing.assert_close(second.replay.state_dict(), whole.replay.state_dict(), rtol=0, atol=0)


def _near_at_the_end(replay: str, steps: int, seed: int = 0) -> float:
    """Return how much of the time the point is near its goal under the policy learned in so many steps."""
    env = _env(1, seed)
    options: dict[str, Any] = {"hidden": (64, 64), "gamma": 0.9, "learning_rate": 3e-3, "warmup": 500, "polyak": 0.02}
    algorithm = OffPolicy(env, OffPolicyConfig(**options, replay=replay, iteration_steps=steps), seed)
    algorithm.collect(env)
    judge = _env(100, seed + 1)
    return evaluate(lambda obs: algorithm.policy.act(obs, deterministic=True), judge, 100)["near"]


def test_hindsight_learns_where_the_reward_is_too_rare() -> None:
    # By chance the point is near for 0.2 % of the time: the area of the goal in that of all goals.
    assert _near_at_the_end("uniform", 3000) < 0.02
    assert _near_at_the_end("her", 3000) > 0.1
