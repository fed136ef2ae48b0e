"""Gymnasium environments in our shape against a plain loop over single ones made by ``gymnasium.make``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sim.errors import UserError
from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_env import GymnasiumEnv, from_vector, make_gymnasium

WAYS = ("serial", "threads", "processes")


class Drift(gymnasium.Env):
    """A point pushed along a line from a random place: it fails beyond 3 and breaks off by itself beyond -3.

    Its observation holds the action that it was given, and its info the seed that it was given, so that both can be
    compared with what the adapter was asked for.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Box(np.array([[-1.0], [0.0]]), np.array([[2.0], [0.5]]), dtype=np.float64)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 20}

    def __init__(self, gain: float = 1.0):
        self.gain = gain

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.uniform(-2, 2), 0
        return self._seen(np.zeros((2, 1))), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert action.shape == (2, 1)
        assert action.dtype == np.float64
        self.x += self.gain * (action[0, 0] - 0.5) + self.np_random.normal(scale=0.1)
        self.steps += 1
        failed = self.x > 3
        # The last step of some failures is a truncation too, as where a time limit runs out in the same step.
        cut = self.x < -3 or (failed and self.steps % 2 == 0)
        info: dict[str, Any] = {"seed": self.np_random_seed, "place": self.x, "is_success": bool(self.x > 1)}
        if self.steps > 2:
            info["late"] = 1.0  # not there in the first step, so not known
        return self._seen(action), self.x - action[1, 0], bool(failed), bool(cut), info

    def _seen(self, action: np.ndarray) -> np.ndarray:
        return np.array([self.x, self.steps, *action.ravel()])


class Reach(gymnasium.Env):
    """A point on a plane to be led to another; a reward for vectors of goals."""

    observation_space = spaces.Dict(
        {
            "achieved_goal": spaces.Box(-9, 9, (2,), np.float64),
            "desired_goal": spaces.Box(-9, 9, (2,), np.float64),
            "mode": spaces.Discrete(3),
            "observation": spaces.Box(-9, 9, (2, 2), np.float64),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.at = self.at + 0.1 * action
        return self._seen(), float(self.compute_reward(self.at, self.goal, {})), False, False, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return -np.linalg.norm(achieved - desired, axis=-1)

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return np.linalg.norm(achieved - desired, axis=-1) < 0.5

    def _seen(self) -> dict[str, Any]:
        around = np.stack([self.at, self.at + 1])
        return {"achieved_goal": self.at, "desired_goal": self.goal, "mode": 1, "observation": around}


class ReachOne(Reach):
    """Its reward is for one goal: of an array of them it makes something of the same shape that is wrong."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return -np.abs(achieved - desired).sum() * np.ones(achieved.shape[:-1])

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return bool(np.abs(achieved - desired).max() < 0.5)  # of many goals one answer


class Stacked(SyncVectorEnv):
    """Its last observations are one array, of the worlds that go on too, as those of a batched simulator are."""

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(actions)
        if "final_obs" in info:
            rows = [np.full(4, np.nan) if last is None else last for last in info["final_obs"]]
            info["final_obs"] = np.stack(rows)
        return obs, reward, terminated, truncated, info


def _vector_drift(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Drift(**kwargs)] * num_envs)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Register the toys."""
    classes: dict[str, Any] = {"Drift": Drift, "Reach": Reach, "ReachOne": ReachOne}
    for name, cls in classes.items():
        gymnasium.register(f"Toy/{name}-v0", cls, max_episode_steps=9 if cls is Drift else None)
    gymnasium.register("Toy/DriftVector-v0", vector_entry_point=_vector_drift)
    yield
    for name in (*classes, "DriftVector"):
        del gymnasium.registry[f"Toy/{name}-v0"]


@pytest.fixture
def made() -> Iterator[Callable[..., GymnasiumEnv]]:
    """Make an environment that is closed afterwards: ``made(env_id, worlds=5, seed=0, **config)``."""
    envs = []

    def make(env_id: str, num_envs: int = 5, seed: int = 0, **config: Any) -> GymnasiumEnv:
        envs.append(make_gymnasium(env_id, GymnasiumConfig(**config), num_envs, seed))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def actions(env: GymnasiumEnv, steps: int, seed: int = 0) -> Iterator[torch.Tensor]:
    """Yield actions of twice the range, so that many have to be clipped."""
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.from_numpy(env.single_action_space.low), torch.from_numpy(env.single_action_space.high)
    for _ in range(steps):
        share = 2 * torch.rand((env.num_envs, len(low)), generator=generator) - 0.5
        yield low + share * (high - low)


def clipped(env: GymnasiumEnv, action: torch.Tensor) -> np.ndarray:
    space = env.single_action_space
    return np.clip(action.numpy(), space.low, space.high)


def assert_equals_single_worlds(env: GymnasiumEnv, make: Callable[[], gymnasium.Env], steps: int) -> dict[str, int]:
    """Compare every step with single worlds, whose seeds the infos tell; return how often each thing happened."""
    n, first = env.num_envs, env.obs_buf["policy"].numpy().copy()
    worlds = [make() for _ in range(n)]
    counts = {"terminated": 0, "truncated": 0, "both": 0}
    returns, lengths = np.zeros(n), np.zeros(n)
    for step, action in enumerate(actions(env, steps)):
        obs, reward, terminated, truncated, extras = env.step(action)
        if step == 0:
            seeds = extras["metrics"]["seed"].long().tolist()
            assert len(set(seeds)) == n
            for i, world in enumerate(worlds):
                np.testing.assert_array_equal(first[i], world.reset(seed=seeds[i])[0].astype(np.float32))
        assert "valid" not in extras
        ended = []
        for i, world in enumerate(worlds):
            given = clipped(env, action)[i].reshape(2, 1).astype(np.float64)
            seen, worth, failed, cut, info = world.step(given)
            np.testing.assert_array_equal(extras["final_obs"]["policy"][i], seen.astype(np.float32))
            assert reward[i] == np.float32(worth)
            assert bool(terminated[i]) == failed
            assert bool(truncated[i]) == (cut and not failed)
            assert extras["metrics"]["place"][i] == info["place"]
            assert bool(extras["outcomes"]["success"][i]) == info["is_success"]
            counts["terminated"] += failed
            counts["truncated"] += cut
            counts["both"] += failed and cut
            returns[i] += worth
            lengths[i] += 1
            if failed or cut:
                ended.append((i, info["is_success"], failed))
                seen, _ = world.reset()
            np.testing.assert_array_equal(obs["policy"][i], seen.astype(np.float32))
        if ended:
            rows = [i for i, *_ in ended]
            assert extras["log"]["episode/count"] == len(rows)
            assert extras["log"]["episode/return"] == pytest.approx(returns[rows].mean())
            assert extras["log"]["episode/length"] == lengths[rows].mean()
            assert extras["log"]["outcome/success"] == pytest.approx(np.mean([won for _, won, _ in ended]))
            assert extras["log"]["termination/terminated"] == pytest.approx(np.mean([fell for *_, fell in ended]))
            returns[rows] = lengths[rows] = 0
        else:
            assert extras["log"] == {}
        assert env.episode_length_buf.tolist() == lengths.tolist()
    return counts


@pytest.mark.parametrize("way", WAYS)
def test_worlds_are_single_environments(way: str, made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", worlds=way, workers=2)
    assert env.max_episode_length == 9
    assert env.step_dt == 1 / 20
    counts = assert_equals_single_worlds(env, lambda: gymnasium.make("Toy/Drift-v0"), 60)
    assert min(counts.values()) >= 1, counts
    assert counts["truncated"] - counts["both"] >= 5


def test_arguments_and_another_limit_reach_every_world(made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", kwargs={"gain": 0.1}, max_steps=4, worlds="processes", workers=2)
    assert env.max_episode_length == 4
    make = lambda: gymnasium.make("Toy/Drift-v0", gain=0.1, max_episode_steps=4)  # noqa: E731
    assert assert_equals_single_worlds(env, make, 12)["truncated"] >= 10


def test_an_environment_of_gymnasium_is_itself(made: Callable[..., GymnasiumEnv]):
    env, alone = made("Pendulum-v1", 1), gymnasium.make("Pendulum-v1")
    assert (env.name, env.max_episode_length, env.observation_terms["policy"]) == (
        "Pendulum-v1",
        200,
        {"observation": 3},
    )
    np.testing.assert_array_equal(env.single_action_space.high, [2.0])
    # Put both into the same state; after that Pendulum draws no random number until its episode ends.
    assert env.one is not None
    alone.reset(seed=0)
    unwrapped: Any = alone.unwrapped
    unwrapped.state = env.one.unwrapped.state.copy()  # pyright: ignore[reportAttributeAccessIssue]
    for step, action in enumerate(actions(env, 200)):
        _, reward, terminated, truncated, extras = env.step(action)
        seen, worth, failed, cut, _ = alone.step(clipped(env, action)[0])
        np.testing.assert_array_equal(extras["final_obs"]["policy"][0], seen)
        assert reward.item() == np.float32(worth)
        assert (terminated.item(), truncated.item()) == (failed, cut) == (False, step == 199)


def test_actions_have_the_environments_bounds(made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", 1)
    np.testing.assert_array_equal(env.single_action_space.low, [-1.0, 0.0])
    np.testing.assert_array_equal(env.single_action_space.high, [2.0, 0.5])
    assert (env.action_term.low, env.action_term.high) == ((-1.0, 0.0), (2.0, 0.5))
    for asked, given in (([5.0, -5.0], [2.0, 0.0]), ([-5.0, 5.0], [-1.0, 0.5]), ([1.5, 0.25], [1.5, 0.25])):
        *_, extras = env.step(torch.tensor([asked]))
        assert extras["final_obs"]["policy"][0, 2:].tolist() == given


def test_a_seed_decides_every_number(made: Callable[..., GymnasiumEnv]):
    def trace(env: GymnasiumEnv) -> torch.Tensor:
        first = env.obs_buf["policy"].clone()
        return torch.stack([first, *(env.step(action)[0]["policy"] for action in actions(env, 20))])

    env = made("Toy/Drift-v0", seed=3)
    seen = trace(env)
    assert torch.equal(trace(made("Toy/Drift-v0", seed=3, worlds="serial")), seen)
    assert not torch.equal(trace(made("Toy/Drift-v0", seed=4, worlds="serial")), seen)
    env.reset(seed=3)
    assert torch.equal(trace(env), seen)
    env.reset()  # without a seed the generators go on
    assert not torch.equal(trace(env)[0], seen[0])


@pytest.mark.parametrize("way", WAYS)
def test_some_worlds_are_reset_alone(way: str, made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", worlds=way, workers=2)
    before, *_ = env.step(torch.zeros(5, 2))
    mask = torch.tensor([False, True, False, False, True])
    after, _ = env.reset(options={"reset_mask": mask})
    assert torch.equal(after["policy"][~mask], before["policy"][~mask])
    assert after["policy"][:, 1].tolist() == env.episode_length_buf.tolist() == [1, 0, 1, 1, 0]


def test_episode_lengths_can_be_set_to_spread_out_the_truncations(made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", kwargs={"gain": 0.0}, max_steps=5, worlds="serial")
    env.episode_length_buf = torch.arange(5)
    cuts = [env.step(torch.zeros(5, 2))[3].tolist() for _ in range(6)]
    assert [row.index(True) for row in cuts] == [4, 3, 2, 1, 0, 4]


def test_after_a_resume_the_first_step_only_begins_new_episodes(made: Callable[..., GymnasiumEnv]):
    env = made("Toy/Drift-v0", worlds="serial")
    for action in actions(env, 7):
        env.step(action)
    state = env.state_dict()
    rests = []
    for way in ("serial", "processes"):
        again = made("Toy/Drift-v0", worlds=way)
        start = again.obs_buf["policy"].clone()
        again.load_state_dict(state)
        assert again.common_step_counter == 7
        first = again.obs_buf["policy"].clone()
        assert not torch.equal(first, start)  # other episodes than the training began with
        obs, reward, terminated, truncated, extras = again.step(torch.ones(5, 2))
        assert not extras["valid"].any()
        assert not (terminated | truncated).any()
        assert (reward.tolist(), again.episode_length_buf.tolist()) == ([0.0] * 5, [0] * 5)
        assert torch.equal(obs["policy"], first)
        steps = [again.step(action) for action in actions(again, 20, seed=1)]
        assert not any("valid" in extras for *_, extras in steps)
        rests.append(torch.stack([obs["policy"] for obs, *_ in steps]))
    assert torch.equal(*rests)


# Vector environments of others


@pytest.mark.parametrize(
    ("cls", "mode"),
    [
        (SyncVectorEnv, AutoresetMode.SAME_STEP),
        (Stacked, AutoresetMode.SAME_STEP),
        (SyncVectorEnv, AutoresetMode.DISABLED),
    ],
)
def test_a_vector_environment_that_resets_within_the_step(cls: type[SyncVectorEnv], mode: AutoresetMode):
    make = lambda: gymnasium.make("Toy/Drift-v0")  # noqa: E731
    env = from_vector(cls([make] * 3, autoreset_mode=mode), "Drift")
    counts = assert_equals_single_worlds(env, make, 60)
    assert min(counts.values()) >= 1, counts
    env.close()


@pytest.mark.parametrize("own", [False, True], ids=["given", "by-id"])
def test_a_vector_environment_that_resets_with_the_next_step(own: bool, made: Callable[..., GymnasiumEnv]):
    if own:
        env, limit = made("Toy/DriftVector-v0", 3), -1
    else:
        vector = SyncVectorEnv([lambda: gymnasium.make("Toy/Drift-v0")] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
        env, limit = from_vector(vector, "Drift"), 9
    assert env.num_envs == 3
    worlds = [gymnasium.make("Toy/Drift-v0", max_episode_steps=limit) for _ in range(3)]
    ended, idle, returns, episodes = [False] * 3, 0, np.zeros(3), 0
    for step, action in enumerate(actions(env, 60)):
        obs, reward, terminated, truncated, extras = env.step(action)
        if step == 0:
            for i, seed in enumerate(extras["metrics"]["seed"].long().tolist()):
                worlds[i].reset(seed=seed)
        valid = extras.get("valid", torch.ones(3, dtype=torch.bool)).tolist()
        assert valid == [not end for end in ended]
        for i, world in enumerate(worlds):
            if ended[i]:
                seen, _ = world.reset()
                idle += 1
                assert not terminated[i]
                assert not truncated[i]
                assert env.episode_length_buf[i] == 0
                returns[i], ended[i] = 0.0, False
            else:
                seen, worth, failed, cut, _ = world.step(clipped(env, action)[i].reshape(2, 1).astype(np.float64))
                assert reward[i] == np.float32(worth)
                assert (bool(terminated[i]), bool(truncated[i])) == (failed, cut and not failed)
                returns[i], ended[i] = returns[i] + worth, failed or cut
            np.testing.assert_array_equal(obs["policy"][i], seen.astype(np.float32))
            np.testing.assert_array_equal(extras["final_obs"]["policy"][i], seen.astype(np.float32))
        assert extras["log"].get("episode/count", 0) == sum(ended)
        episodes += sum(ended)
        if any(ended):  # which a step that is none adds nothing to
            assert extras["log"]["episode/return"] == pytest.approx(returns[ended].mean())
    assert idle >= 5
    assert episodes - 3 <= idle <= episodes
    env.close()


def test_a_vector_environment_keeps_its_own_limit():
    with pytest.raises(UserError, match="max_steps: Toy/DriftVector-v0 steps all of its worlds itself"):
        make_gymnasium("Toy/DriftVector-v0", GymnasiumConfig(max_steps=3), 2)


# Observations with names, and goals


def test_the_entries_of_a_dict_are_terms_with_the_observation_first(made: Callable[..., GymnasiumEnv]):
    env, alone = made("Toy/Reach-v0", 1), gymnasium.make("Toy/Reach-v0")
    assert list(env.observation_terms["policy"].items()) == [
        ("observation", 4), ("achieved_goal", 2), ("desired_goal", 2), ("mode", 3)
    ]  # fmt: skip
    assert env.observation_terms["critic"] == env.observation_terms["policy"]
    assert env.max_episode_length == 0  # it never ends
    assert env.one is not None
    alone.reset(seed=0)
    theirs: Any = env.one.unwrapped
    unwrapped: Any = alone.unwrapped
    unwrapped.at, unwrapped.goal = theirs.at, theirs.goal
    obs, *_ = env.step(torch.tensor([[0.5, -0.25]]))
    seen, *_ = alone.step(np.array([0.5, -0.25], np.float32))
    expected = np.concatenate([seen["observation"].ravel(), seen["achieved_goal"], seen["desired_goal"], [0, 1, 0]])
    np.testing.assert_array_equal(obs["policy"][0], expected.astype(np.float32))
    assert torch.equal(obs["critic"], obs["policy"])


@pytest.mark.parametrize("name", ["Reach", "ReachOne"])
def test_goals_are_judged_many_at_once_as_one_by_one(name: str, made: Callable[..., GymnasiumEnv]):
    env = made(f"Toy/{name}-v0", 3)
    goal, alone = env.goal, {"Reach": Reach, "ReachOne": ReachOne}[name]()
    assert goal is not None
    assert goal.terminated is not None
    assert (goal.achieved, goal.desired, goal.size) == (slice(4, 6), slice(6, 8), 2)
    achieved, desired = torch.rand((2, 50, 2), generator=torch.Generator().manual_seed(0))
    rewards, ends = goal.reward(achieved, desired), goal.terminated(achieved, desired)
    assert (rewards.dtype, rewards.shape, ends.dtype, ends.shape) == (torch.float32, (50,), torch.bool, (50,))
    for i in range(50):
        a, d = (v[i].numpy().astype(np.float64) for v in (achieved, desired))
        assert rewards[i] == np.float32(alone.compute_reward(a, d, {}))
        assert bool(ends[i]) == bool(alone.compute_terminated(a, d, {}))
    assert 0 < ends.sum() < 50
    # What the worlds paid is what the goals in their observations are worth.
    if name == "Reach":
        obs, reward, *_ = env.step(torch.ones(3, 2))
        torch.testing.assert_close(
            goal.reward(obs["policy"][:, goal.achieved], obs["policy"][:, goal.desired]), reward, rtol=0, atol=1e-6
        )


def test_without_a_reward_for_goals_there_are_none(made: Callable[..., GymnasiumEnv]):
    assert made("Toy/Drift-v0", 1).goal is None


# Names

MODULE = """
import gymnasium
from gymnasium.envs.classic_control.pendulum import PendulumEnv
gymnasium.register("{name}-v0", "{name}:Mine", max_episode_steps=3)

class Mine(PendulumEnv):
    pass
"""


@pytest.mark.parametrize("way", ["serial", "processes"])
def test_a_module_before_the_id_is_imported(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[..., GymnasiumEnv]
):
    name = f"toy_module_{way}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="write module:Id-v0"):
        make_gymnasium(f"{name}-v0", GymnasiumConfig())
    env = made(f"{name}:{name}-v0", 2, worlds=way)
    cuts = [env.step(torch.zeros(2, 1))[3].tolist() for _ in range(4)]
    assert cuts == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    del gymnasium.registry[f"{name}-v0"]
