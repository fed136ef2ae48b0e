"""One environment of each family of gymnasium-robotics, and why its helpers need mending."""

import subprocess
import sys
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_env import make_gymnasium
from tasks.adapters.gymnasium_robotics_mend import mend

pytest.importorskip("gymnasium_robotics", reason="needs the extra robotics")

FAMILIES = {  # the size of each term of the observation, whether there are goals to judge, the outcome, steps
    "FetchReach-v4": ({"observation": 10, "achieved_goal": 3, "desired_goal": 3}, True, "success", 50),
    "FetchPush-v4": ({"observation": 25, "achieved_goal": 3, "desired_goal": 3}, True, "success", 50),
    "HandManipulateBlock-v1": ({"observation": 61, "achieved_goal": 7, "desired_goal": 7}, True, "success", 100),
    "AntMaze_UMaze-v5": ({"observation": 105, "achieved_goal": 2, "desired_goal": 2}, True, "success", 700),
    "PointMaze_UMaze-v3": ({"observation": 4, "achieved_goal": 2, "desired_goal": 2}, True, "success", 300),
    "AdroitHandDoor-v1": ({"observation": 39}, False, "success", 200),
    "FrankaKitchen-v1": ({"observation": 59}, False, None, 280),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_makes_resets_and_steps(name: str):
    terms, goals, outcome, limit = FAMILIES[name]
    env = make_gymnasium(name, GymnasiumConfig(max_steps=3))
    try:
        seen = env.observation_terms["policy"]
        assert {term: seen[term] for term in terms} == terms
        assert (env.goal is not None) == goals
        first = env.obs_buf["policy"].clone()
        assert first.shape == (1, sum(seen.values()))
        generator, high = torch.Generator().manual_seed(0), torch.from_numpy(env.single_action_space.high)
        for step in range(4):
            action = high * (2 * torch.rand((1, len(high)), generator=generator) - 1)
            obs, reward, _, truncated, extras = env.step(action)
            final = extras["final_obs"]["policy"]
            for values in (obs["policy"], final, reward):
                assert torch.isfinite(values).all()
            assert not torch.equal(final, first)
            assert bool(truncated) == (step == 2)
            assert set(extras["outcomes"]) == ({outcome} if outcome else set())
            if env.goal is not None:
                achieved, desired = final[:, env.goal.achieved], final[:, env.goal.desired]
                torch.testing.assert_close(env.goal.reward(achieved, desired), reward)
        obs, _ = env.reset(seed=0)
        assert torch.equal(obs["policy"], first)
        assert torch.isfinite(first).all()
    finally:
        env.close()
    env = make_gymnasium(name, GymnasiumConfig())
    assert env.max_episode_length == limit
    env.close()


def test_goals_of_many_worlds_are_judged_as_the_environment_does_one_by_one():
    env = make_gymnasium("FetchReach-v4", GymnasiumConfig())
    assert env.goal is not None
    assert env.one is not None
    alone: Any = env.one.unwrapped
    achieved = torch.rand((40, 3), generator=torch.Generator().manual_seed(0))
    desired = achieved + 0.05 * torch.randn((40, 3), generator=torch.Generator().manual_seed(1))
    rewards = env.goal.reward(achieved, desired).tolist()
    expected = [alone.compute_reward(a, d, {}) for a, d in zip(achieved.numpy(), desired.numpy(), strict=True)]
    assert rewards == expected
    assert set(rewards) == {0.0, -1.0}
    env.close()


# The mend

PLAIN = """
import contextlib, io, gymnasium
with contextlib.redirect_stderr(io.StringIO()):
    import gymnasium_robotics
{mend}
env = gymnasium.make("FetchReach-v4")
env.reset(seed=0)
print(env.step(env.action_space.sample())[0]["observation"].shape)
"""
MEND = "from tasks.adapters.gymnasium_robotics_mend import mend; print(mend(), mend())"


def plain(mend: str) -> "subprocess.CompletedProcess[str]":
    """Make and step an environment of gymnasium-robotics without our adapter, after some mend."""
    return subprocess.run([sys.executable, "-c", PLAIN.format(mend=mend)], capture_output=True, text=True)


def test_the_mend_is_what_lets_it_run():
    mended = plain(MEND)
    assert mended.returncode == 0, mended.stderr
    needed = mended.stdout.splitlines()[0] == "True False"
    assert mended.stdout.splitlines()[1] == "(10,)"
    # Where it says that it was needed it is, and where it says that it was not all goes well without it.
    alone = plain("")
    assert (alone.returncode != 0) == needed
    assert not needed or "mjJNT_HINGE" in alone.stderr


def test_the_mend_leaves_everything_else_as_it_was():
    mend()
    helpers: Any = sys.modules["gymnasium_robotics.utils.mujoco_utils"]
    assert mend() is False
    assert helpers.mujoco.mj_name2id is mujoco.mj_name2id
    for joint in ("mjJNT_FREE", "mjJNT_BALL", "mjJNT_SLIDE", "mjJNT_HINGE"):
        assert np.int32(int(getattr(mujoco.mjtJoint, joint))) in (getattr(helpers.mujoco.mjtJoint, joint),)
    with pytest.raises(AttributeError):
        _ = helpers.mujoco.mjtNothing
    assert mujoco.mjtJoint.__members__["mjJNT_HINGE"] is mujoco.mjtJoint.mjJNT_HINGE  # the module itself is untouched


QUIET = """
from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_env import make_gymnasium
for name in ("AdroitHandDoor-v1", "HalfCheetah-v5"):
    make_gymnasium(name, GymnasiumConfig(worlds="processes", workers=1), 1).close()
"""


def test_nothing_is_printed_that_the_user_cannot_change(tmp_path: Any):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{QUIET}"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []  # such as MuJoCo's log of its warnings
