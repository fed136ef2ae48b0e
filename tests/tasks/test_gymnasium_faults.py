"""Gymnasium environments that break, processes that die, and environments that no policy of ours can act in."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from sim.errors import UserError
from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_env import GymnasiumEnv, from_vector, make_gymnasium
from tasks.adapters.gymnasium_goal import goal_of
from tasks.adapters.gymnasium_spaces import Flattener
from tasks.adapters.gymnasium_workers import Processes
from tasks.vector_env import EnvironmentFailed

WAYS = ("serial", "threads", "processes")
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Faulty(gymnasium.Env):
    """Goes wrong in one way when it is given an action above 0.5; else its observation counts its steps."""

    observation_space = spaces.Dict({"count": BOX, "extra": BOX})
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fault: str = ""):
        self.fault = fault
        if fault == "make":
            raise RuntimeError("no licence\nfor this machine")
        if fault.startswith("elsewhere") and os.getpid() != int(fault.split()[-1]):
            if "kill" in fault:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("one copy only")
        self.steps, self.failed = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if self.fault == "reset" and self.failed:
            raise ValueError("nowhere to begin")
        if self.fault == "reset nan" and self.failed:
            return self._seen() | {"extra": np.array([0.0, np.nan])}, {}
        if self.fault == "reset old" and self.failed:
            old: Any = self._seen()
            return old
        self.steps = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict]:
        self.steps += 1
        if action[0] <= 0.5:
            return self._seen(), 1.0, False, False, {}
        self.failed = True
        if self.fault == "raise":
            raise ZeroDivisionError("the arm\n  is gone")
        if self.fault == "silent":
            raise KeyError
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        obs: Any = self._seen()
        obs |= {
            "nan": {"extra": np.array([0.0, np.nan])},
            "inf": {"count": np.array([np.inf, 0.0])},
            "shape": {"extra": np.zeros(3)},
        }.get(self.fault, {})
        if self.fault == "key":
            del obs["extra"]
        if self.fault == "none":
            obs = None
        reward = {"nan reward": np.nan, "inf reward": -np.inf, "no reward": None, "text reward": "much"}.get(
            self.fault, 1.0
        )
        answer: Any = (obs, reward, self.fault.startswith("reset"), False, {})
        return {"four": answer[1:], "list": [*answer]}.get(self.fault, answer)

    def close(self) -> None:
        if self.fault == "close":
            raise OSError("already gone")

    def _seen(self) -> dict[str, np.ndarray]:
        return {"count": np.full(2, self.steps, np.float32), "extra": np.zeros(2, np.float32)}


class Spaceless(gymnasium.Env):
    """An environment that forgot to say what it observes."""

    action_space = BOX

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        return np.zeros(2), {}


class Impossible(gymnasium.Env):
    """Goals whose reward is not a number where they lie far apart."""

    def __init__(self) -> None:
        box = spaces.Box(-9.0, 9.0, (2,), np.float64)
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = BOX

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        distance = np.linalg.norm(achieved - desired, axis=-1)
        return np.where(distance > 2, np.nan, -distance)


class Spaces(gymnasium.Env):
    """An environment of the spaces that it is given."""

    def __init__(self, observation: spaces.Space = BOX, action: spaces.Space = BOX):
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Register the toys."""
    toys: dict[str, Any] = {
        "Toy/Faulty-v0": Faulty,
        "Toy/Spaces-v0": Spaces,
        "Toy/Spaceless-v0": Spaceless,
    }
    for name, cls in toys.items():
        gymnasium.register(name, cls)
    yield
    for name in toys:
        del gymnasium.registry[name]


@pytest.fixture
def faulty() -> Iterator[Callable[..., GymnasiumEnv]]:
    """Make worlds of `Faulty`, closed afterwards: ``faulty(fault, way="processes", worlds=5)``."""
    envs = []

    def make(fault: str, way: str = "processes", num_envs: int = 5) -> GymnasiumEnv:
        config = GymnasiumConfig(kwargs={"fault": fault}, worlds=way, workers=2)
        envs.append(make_gymnasium("Toy/Faulty-v0", config, num_envs))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def said(call: Callable[[], Any], kind: type[UserError] = UserError) -> str:
    """Return the one line of the error of a call."""
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


def push(*worlds: int, of: int = 5) -> torch.Tensor:
    """Return actions that break these worlds."""
    action = torch.zeros(of, 1)
    action[list(worlds)] = 1.0
    return action


def pids(env: GymnasiumEnv) -> list[int]:
    assert isinstance(env._stepper, Processes)
    return env._stepper.pids


# Environments that break


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raise", "Toy/Faulty-v0 raised in step of world 3: ZeroDivisionError: the arm is gone"),
        ("silent", "Toy/Faulty-v0 raised in step of world 3: KeyError"),
        ("reset", "Toy/Faulty-v0 raised in reset of world 3: ValueError: nowhere to begin"),
        ("nan", "Toy/Faulty-v0 returned a value that is not finite: observation extra[1] is nan in world 3 at step 1"),
        ("inf", "Toy/Faulty-v0 returned a value that is not finite: observation count[0] is inf in world 3 at step 1"),
        ("reset nan", "Toy/Faulty-v0 returned a value that is not finite: observation extra[1] is nan in world 3"),
        ("nan reward", "Toy/Faulty-v0 returned a value that is not finite: reward is nan in world 3 at step 1"),
        ("inf reward", "Toy/Faulty-v0 returned a value that is not finite: reward is -inf in world 3 at step 1"),
        ("shape", "Toy/Faulty-v0 returned extra of shape (3,); its observation space says (2,), in world 3"),
        ("key", "Toy/Faulty-v0 returned an observation without extra, in world 3"),
        ("none", "Toy/Faulty-v0 returned an observation without count, in world 3"),
        ("no reward", "Toy/Faulty-v0 returned the reward None, not a number, in world 3"),
        ("text reward", "Toy/Faulty-v0 returned the reward 'much', not a number, in world 3"),
        (
            "four",
            "Toy/Faulty-v0 returned 4 values from step, not (observation, reward, terminated, truncated, info), in ",
        ),
        ("list", "Toy/Faulty-v0 returned list from step, not (observation, reward, terminated, truncated, info), in "),
        ("reset old", "Toy/Faulty-v0 returned dict from reset, not (observation, info), in world 3"),
    ],
)
def test_a_world_that_breaks_is_named(fault: str, line: str, way: str, faulty: Callable[..., GymnasiumEnv]):
    env = faulty(fault, way)
    env.step(push())
    assert said(lambda: env.step(push(3)), EnvironmentFailed).startswith(line)


@pytest.mark.parametrize("fault", ["nan", "shape", "raise", "nan reward"])
def test_a_vector_environment_that_breaks_is_named(fault: str):
    env = from_vector(SyncVectorEnv([lambda: Faulty(fault)] * 3, observation_mode="different"), "Vector")
    env.step(push(of=3))
    assert said(lambda: env.step(push(1, of=3)), EnvironmentFailed).startswith("Vector r")


def test_one_without_a_space_says_so():
    line = said(lambda: make_gymnasium("Toy/Spaceless-v0", GymnasiumConfig(), 2))
    assert line == "Toy/Spaceless-v0 has no observation_space: it must be a gymnasium.spaces.Space, set before reset"


def test_a_reward_of_a_goal_that_is_no_number_is_named():
    env = Impossible()
    goal = goal_of(env, Flattener(env.observation_space, "Toy"))
    assert goal is not None
    near, far = torch.zeros(3, 2), torch.tensor([[0.0, 0.5], [0.0, 3.0], [4.0, 0.0]])
    torch.testing.assert_close(goal.reward(near[:1], far[:1]), torch.tensor([-0.5]))
    line = said(lambda: goal.reward(near, far), EnvironmentFailed)
    assert line == "compute_reward returned nan for the achieved goal [0.0, 0.0] where [0.0, 3.0] was desired"


@pytest.mark.parametrize("way", WAYS)
def test_one_that_cannot_be_made_says_why(way: str):
    config = GymnasiumConfig(kwargs={"fault": "make"}, worlds=way)
    line = said(lambda: make_gymnasium("Toy/Faulty-v0", config, 2))
    assert line.startswith("Toy/Faulty-v0 cannot be made: RuntimeError: no licence for this machine")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raise", "Toy/Faulty-v0 cannot be made: RuntimeError: one copy only"),
        ("kill", "a process for Toy/Faulty-v0 ended before its worlds were made"),
    ],
)
def test_one_that_cannot_be_made_in_a_process_leaves_none_behind(fault: str, line: str):
    config = GymnasiumConfig(kwargs={"fault": f"elsewhere {fault} {os.getpid()}"}, worlds="processes", workers=2)
    with pytest.raises(EnvironmentFailed) as error:
        make_gymnasium("Toy/Faulty-v0", config, 2)
    assert str(error.value).startswith(line)
    assert multiprocessing.active_children() == []


def test_only_the_first_error_of_a_step_is_told_and_none_later(faulty: Callable[..., GymnasiumEnv]):
    env = faulty("raise")
    assert "world 0" in said(lambda: env.step(push(0, 3)), EnvironmentFailed)
    obs, *_ = env.reset()  # every answer of that step has been read
    assert not obs["policy"].any()
    obs, *_ = env.step(push())
    assert obs["policy"][:, 0].tolist() == [1.0] * 5


# Processes that die


def test_the_worlds_of_a_killed_process_begin_anew_and_the_others_go_on(
    faulty: Callable[..., GymnasiumEnv], caplog: pytest.LogCaptureFixture
):
    env = faulty("")
    env.step(push())
    killed = pids(env)[1]
    os.kill(killed, signal.SIGKILL)
    obs, reward, terminated, truncated, extras = env.step(push())
    valid = extras["valid"].tolist()
    assert valid == [True, True, False, False, False]
    assert obs["policy"][:, 0].tolist() == [2.0, 2.0, 0.0, 0.0, 0.0]
    assert reward.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert not (terminated | truncated).any()
    assert extras["log"] == {}  # an episode that broke off is no episode
    assert env.episode_length_buf.tolist() == [2, 2, 0, 0, 0]
    assert env.health() == {"worlds/restarts": 1.0}
    (warning,) = caplog.messages
    assert warning == ("the process of worlds 2 to 4 of Toy/Faulty-v0 died (signal 9) and is begun anew; "
                       "their episodes are not counted")  # fmt: skip
    obs, *_, extras = env.step(push())
    assert "valid" not in extras
    assert obs["policy"][:, 0].tolist() == [3.0, 3.0, 1.0, 1.0, 1.0]
    assert killed not in pids(env)


def test_a_process_killed_before_a_reset_is_begun_anew(faulty: Callable[..., GymnasiumEnv]):
    env = faulty("")
    for _ in range(2):
        env.step(push())
    os.kill(pids(env)[0], signal.SIGKILL)
    obs, _ = env.reset(options={"reset_mask": torch.tensor([False] * 4 + [True])})
    # All worlds of the dead process are at their beginning, asked for or not.
    assert obs["policy"][:, 0].tolist() == [0.0, 0.0, 2.0, 2.0, 0.0]
    assert env.episode_length_buf.tolist() == [0, 0, 2, 2, 0]
    assert env.health() == {"worlds/restarts": 1.0}


def test_a_seed_holds_for_the_worlds_of_a_killed_process_too():
    env = make_gymnasium("Pendulum-v1", GymnasiumConfig(worlds="processes", workers=2), 4)
    first = env.reset(seed=3)[0]["policy"].clone()
    os.kill(pids(env)[1], signal.SIGKILL)
    assert torch.equal(env.reset(seed=3)[0]["policy"], first)
    assert env.health() == {"worlds/restarts": 1.0}
    env.close()


def test_a_process_that_dies_again_and_again_is_given_up(faulty: Callable[..., GymnasiumEnv]):
    env = faulty("kill")
    for _ in range(2):
        assert not env.step(push(4))[-1]["valid"][2:].any()
    line = said(lambda: env.step(push(4)), EnvironmentFailed)
    assert line.startswith("the process of worlds 2 to 4 of Toy/Faulty-v0 died 3 times within 1000 steps (signal 9)")
    assert "--env.worlds serial" in line


def test_closing_leaves_no_process(faulty: Callable[..., GymnasiumEnv]):
    env = faulty("")
    ids = pids(env)
    assert len(ids) == 2
    env.close()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in ids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("way", WAYS)
def test_one_that_breaks_when_it_is_closed_spoils_nothing(way: str, caplog: pytest.LogCaptureFixture):
    config = GymnasiumConfig(kwargs={"fault": "close"}, worlds=way, workers=2)
    env = make_gymnasium("Toy/Faulty-v0", config, 2)
    env.close()
    here = 1 if way == "processes" else 2  # each is closed once
    assert caplog.messages == ["Toy/Faulty-v0 raised in close: OSError: already gone"] * here


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# What is refused


def box(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (spaces.Discrete(3), "has actions Discrete(3); supported is a Box of real numbers, not choices"),
        (spaces.MultiDiscrete([2, 3]), "has actions MultiDiscrete([2 3]); supported is a Box"),
        (spaces.MultiBinary(2), "has actions MultiBinary(2); supported is a Box"),
        (spaces.Dict({"arm": BOX}), "has actions Dict('arm': Box"),
        (box([0, 0], [3, 3], np.int64), "has actions of int64; supported is a Box of real numbers"),
        (box([-1, -np.inf], [1, np.inf]), "has an action 1 from -inf to inf; actions need finite limits that differ"),
        (box([-1, 0], [np.inf, 1]), "has an action 0 from -1 to inf; actions need finite limits"),
        (box([-1, 2], [1, 2]), "has an action 1 from 2 to 2; actions need finite limits that differ"),
        (spaces.Box(-1, 1, (0,)), "takes no action: its Box is empty"),
    ],
)
def test_actions_that_no_policy_of_ours_takes_are_refused(action: spaces.Space, reason: str):
    line = said(lambda: make_gymnasium("Toy/Spaces-v0", GymnasiumConfig(kwargs={"action": action})))
    assert line.startswith(f"Toy/Spaces-v0 {reason}")


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), "observes an image, observation (4, 4, 3)"),
        (spaces.Dict({"at": BOX, "eye": spaces.Box(0, 255, (4, 4), np.uint8)}), "observes an image, eye (4, 4)"),
        (spaces.Sequence(BOX), "observes observation, Sequence("),
        (spaces.Dict({"at": BOX, "graph": spaces.Graph(BOX, None)}), "observes graph, Graph("),
        (spaces.Dict({}), "has an empty observation: Dict()"),
    ],
)
def test_observations_that_are_no_vector_are_refused(observation: spaces.Space, reason: str):
    line = said(lambda: make_gymnasium("Toy/Spaces-v0", GymnasiumConfig(kwargs={"observation": observation})))
    assert line.startswith(f"Toy/Spaces-v0 {reason}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CartPole-v1", "CartPole-v1 has actions Discrete(2)"),
        ("HalfCheeta-v5", "unknown Gymnasium environment 'HalfCheeta-v5'; did you mean 'HalfCheetah-v5'?"),
        ("Pendulum-v9", "unknown Gymnasium environment 'Pendulum-v9'; did you mean 'Pendulum-v1'?"),
        ("xyz", "unknown Gymnasium environment 'xyz'; write module:Id-v0 for one that a package of its own brings"),
        ("nowhere:Some-v0", "nowhere:Some-v0 needs the package 'nowhere', which is not installed"),
        ("nowhere.inside:Some-v0", "nowhere.inside:Some-v0 needs the package 'nowhere', which is not installed"),
        ("json:Some-v0", "unknown Gymnasium environment 'Some-v0'"),
        (":Pendulum-v1", ":Pendulum-v1"),
    ],
)
def test_a_wrong_id_is_one_line(name: str, reason: str):
    assert said(lambda: make_gymnasium(name, GymnasiumConfig())).startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_this_name", "needs the package 'nothing_of_this_name', which is not installed"),
        ("1 / 0", "broken_module fails to import: ZeroDivisionError: division by zero"),
        ("def", "broken_module fails to import: SyntaxError: "),
    ],
)
def test_a_module_that_fails_to_import_is_one_line(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert reason in said(lambda: make_gymnasium("broken_module:Some-v0", GymnasiumConfig()))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"kwargs": {"gravity": 9.81}}, "Toy/Faulty-v0 cannot be made: TypeError: "),
        ({"kwargs": {"max_episode_steps": 3}}, "kwargs.max_episode_steps is set by max_steps: --env.max-steps N"),
        ({"max_steps": -1}, "max_steps must not be negative, not -1"),
        ({"workers": -1}, "workers must not be negative, not -1"),
        ({"worlds": "thread"}, "unknown way to step worlds 'thread'; did you mean 'threads'?"),
    ],
)
def test_a_wrong_setting_is_one_line(config: dict[str, Any], reason: str):
    assert said(lambda: make_gymnasium("Toy/Faulty-v0", GymnasiumConfig(**config))).startswith(reason)


def test_wrong_actions_are_one_line(faulty: Callable[..., GymnasiumEnv]):
    env = faulty("", "serial")
    assert said(lambda: env.step(torch.zeros(5))) == "action has shape (5,), this environment takes (5, 1)"
    action = torch.zeros(5, 1)
    action[2] = torch.nan
    assert said(lambda: env.step(action)) == "action is not finite in world 2 at step 0: [nan]"
    assert said(lambda: env.reset(options={"mask": 1})).startswith("unknown reset option 'mask'")
    assert said(env.render) == "Toy/Faulty-v0 cannot draw itself: NotImplementedError"
