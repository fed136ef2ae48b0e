"""The suite against Gymnasium's own v5 environments: same state, same actions, same everything."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from sim.mujoco_cpu import MujocoSimulation
from tasks.env import Env
from tasks.registry import make_task

NAMES = [
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
]
STEPS = 200
WORLDS = 4
ROUNDING = 1e-6
"""Relative; a float32 holds a float64 to 6e-8, and the physics must be the same to the last bit."""


def make_env(name: str, num_envs: int = WORLDS, seed: int = 0) -> Env:
    task = make_task(name)
    simulation = MujocoSimulation(task.model(), num_envs, threads=1, external_forces=task.external_forces)
    return Env(task, simulation, seed)


def make_theirs(name: str) -> gymnasium.Env:
    return gymnasium.make(f"{name}-v5", disable_env_checker=True)


def base(theirs: gymnasium.Env) -> Any:
    return theirs.unwrapped


def start(theirs: gymnasium.Env, env: Env, world: int) -> np.ndarray:
    """Begin an episode of theirs in the state of one of our worlds, and return its observation."""
    theirs.reset(seed=0)
    base(theirs).set_state(env.sim.qpos[world].numpy(), env.sim.qvel[world].numpy())
    return base(theirs)._get_obs()


def policy(observation: dict[str, torch.Tensor]) -> np.ndarray:
    assert torch.equal(observation["policy"], observation["critic"])
    return observation["policy"].numpy()


@pytest.mark.parametrize("effort", [1.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_gymnasium(name: str, effort: float) -> None:
    env = make_env(name, seed=7)
    task, space = env.task, env.single_action_space
    observation, _ = env.reset()
    theirs = [make_theirs(name) for _ in range(WORLDS)]
    begun = [start(t, env, i) for i, t in enumerate(theirs)]
    np.testing.assert_allclose(policy(observation), begun, rtol=ROUNDING)
    if env.max_episode_length > STEPS:
        # Near their ends, each at another distance from it, so that the episodes are also cut short here.
        for i, t in enumerate(theirs):
            env.episode_length_buf[i] = env.max_episode_length - 20 - 40 * i
            t._elapsed_steps = int(env.episode_length_buf[i])  # pyright: ignore[reportAttributeAccessIssue]

    rng = np.random.default_rng(int(100 * effort))
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(STEPS):
        actions = effort * rng.uniform(space.low, space.high, (WORLDS, len(space.low)))
        observation, reward, terminated, truncated, extras = env.step(torch.from_numpy(actions.astype(np.float32)))
        named = {k: task.config.weights[k] * v.numpy() for k, v in task.rewards().items()}
        for i, t in enumerate(theirs):
            # Their arithmetic on the action is float32 if the action is, ours is float64.
            their_obs, their_reward, fell, timed_out, info = t.step(task_action(actions[i]))
            np.testing.assert_allclose(policy(extras["final_obs"])[i], their_obs, rtol=ROUNDING)
            np.testing.assert_allclose(reward[i], float(their_reward), rtol=ROUNDING, atol=1e-12)
            assert bool(terminated[i]) == fell
            assert bool(truncated[i]) == (timed_out and not fell)  # a failure in the last step counts as one
            if fell or timed_out:
                ends["terminated" if fell else "truncated"] += 1
                np.testing.assert_allclose(policy(observation)[i], start(t, env, i), rtol=ROUNDING)
            else:
                assert named.keys() - {"reward_survive"} == reported(info).keys() - {"reward_survive"}
                for term, value in reported(info).items():
                    np.testing.assert_allclose(named[term][i], float(value), rtol=ROUNDING, err_msg=term)
    assert ends["truncated"] or ends["terminated"] >= WORLDS
    if effort == 1.0 and name in {"Hopper", "Walker2d", "Humanoid", "InvertedPendulum", "InvertedDoublePendulum"}:
        assert ends["terminated"] > 0


def task_action(action: np.ndarray) -> np.ndarray:
    """Return the action as ours reads it: rounded to float32, then computed with in float64."""
    return action.astype(np.float32).astype(np.float64)


def reported(info: dict[str, Any]) -> dict[str, Any]:
    """Return the reward terms among what Gymnasium reports."""
    return {k: v for k, v in info.items() if k.startswith("reward_") or k.endswith("_penalty")}


@pytest.mark.parametrize("name", NAMES)
def test_spaces_and_timing_are_gymnasiums(name: str) -> None:
    env, theirs = make_env(name, 1), make_theirs(name)
    assert env.single_action_space == theirs.action_space
    assert env.single_observation_space["policy"].shape == theirs.observation_space.shape
    assert theirs.spec is not None
    assert env.max_episode_length == theirs.spec.max_episode_steps
    assert env.physics_dt == base(theirs).model.opt.timestep
    assert env.task.config.decimation == base(theirs).frame_skip
    assert env.step_dt == pytest.approx(base(theirs).dt, rel=1e-12)


def test_timestep_follows_the_config() -> None:
    task = make_task("HalfCheetah", physics_dt=0.005)
    assert task.model().opt.timestep == 0.005
    assert task.config.decimation == 10


@pytest.mark.parametrize("name", NAMES)
def test_initial_states_are_distributed_as_gymnasiums(name: str) -> None:
    """Mean, variance and kurtosis of each coordinate agree within 5 standard errors.

    The errors of the last two are those of a normal variable, at least those of the uniform ones here; a kurtosis of
    1.8, uniform, stands 8 errors from one of 3, normal.
    """
    batches, worlds, theirs_n = 12, 256, 2000
    env = make_env(name, worlds, seed=3)
    rows = []
    for _ in range(batches):
        env.reset()
        rows.append(torch.cat((env.sim.qpos, env.sim.qvel), 1).numpy().copy())
    ours = np.concatenate(rows)
    theirs = base(make_theirs(name))
    theirs.reset(seed=3)
    expected = []
    for _ in range(theirs_n):
        theirs.reset_model()
        expected.append(np.concatenate((theirs.data.qpos, theirs.data.qvel)))
    expected = np.array(expected)

    fixed = expected.std(0) == 0
    np.testing.assert_array_equal(ours[:, fixed], np.broadcast_to(expected[0, fixed], (len(ours), fixed.sum())))
    a, b = ours[:, ~fixed], expected[:, ~fixed]
    share = 1 / len(a) + 1 / len(b)
    scale = b.std(0)
    assert np.all(np.abs(a.mean(0) - b.mean(0)) < 5 * scale * np.sqrt(share))
    assert np.all(np.abs(a.var(0) / b.var(0) - 1) < 5 * np.sqrt(2 * share))
    assert np.all(np.abs(kurtosis(a) - kurtosis(b)) < 5 * np.sqrt(24 * share))


def kurtosis(samples: np.ndarray) -> np.ndarray:
    """Return the fourth standardised moment of each column."""
    return (((samples - samples.mean(0)) / samples.std(0)) ** 4).mean(0)


@pytest.mark.parametrize("name", ["Ant", "Humanoid", "InvertedDoublePendulum"])
def test_resume_continues_bit_for_bit(name: str) -> None:
    """These tasks read quantities that mj_step left behind, which no forward pass brings back."""
    env, resumed = make_env(name), make_env(name, seed=1)
    actions = torch.rand(20, WORLDS, env.task.action.shape[1], generator=torch.Generator().manual_seed(0)) - 0.5
    for action in actions[:10]:
        env.step(action)
    resumed.load_state_dict(env.state_dict())
    for action in actions[10:]:
        mine, theirs = env.step(action), resumed.step(action)
        assert torch.equal(mine[0]["policy"], theirs[0]["policy"])
        assert torch.equal(mine[1], theirs[1])
