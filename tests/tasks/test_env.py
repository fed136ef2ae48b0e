"""What an environment promises whatever the task: episode ends, observations, names, errors, resume."""

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch

from sim.errors import UserError
from tasks.env import Env

Make = Callable[..., Any]


def push(env: Env, force: float = 0.0) -> torch.Tensor:
    return torch.full((env.num_envs, 1), force)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_final_obs_is_the_true_last_observation_and_obs_the_new_first(slider: Make):
    env, endless = slider(limit=0.05), slider()
    first = {group: values.clone() for group, values in env.obs_buf.items()}
    ends = 0
    for _ in range(12):  # world 2 passes 0.05 m in step 5, world 1 in step 7, world 0 later
        obs, _, terminated, _, extras = env.step(push(env))
        truth, *_ = endless.step(push(endless))
        running = torch.tensor([world not in _finished(ends) for world in range(3)])
        for group in ("policy", "critic"):
            assert torch.equal(extras["final_obs"][group][running], truth[group][running])
            assert torch.equal(obs[group][terminated], first[group][terminated])
            going_on = ~terminated
            assert torch.equal(obs[group][going_on], extras["final_obs"][group][going_on])
        ends |= sum(1 << world for world in terminated.nonzero().flatten().tolist())
    assert ends == 0b110


def _finished(ends: int) -> list[int]:
    return [world for world in range(3) if ends >> world & 1]


def test_worlds_that_go_on_see_the_same_noise_in_both_observations(slider: Make):
    env = slider(limit=0.05, noise={"position": 1.0})
    for _ in range(6):
        obs, _, terminated, _, extras = env.step(push(env))
        assert torch.equal(obs["policy"][~terminated], extras["final_obs"]["policy"][~terminated])
    assert terminated.shape == (3,)


def test_running_out_of_time_is_truncation_and_failing_is_termination(slider: Make):
    # World 2 passes the limit at 0.1667 s, world 1 at 0.25 s; everything ends at 0.2 s.
    env = slider(limit=0.05, episode_s=0.2)
    assert env.max_episode_length == 5
    ends = []
    for _ in range(5):
        _, _, terminated, truncated, extras = env.step(push(env))
        ends.append((terminated.tolist(), truncated.tolist()))
    assert ends[:4] == [([False] * 3, [False] * 3)] * 4
    assert ends[4] == ([False, False, True], [True, True, False])  # failing in the last step is failing
    log = extras["log"]
    assert log["episode/count"] == 3.0
    assert log["episode/length"] == 5.0
    assert log["termination/far"] == pytest.approx(1 / 3)
    assert log["termination/time_out"] == pytest.approx(2 / 3)
    assert env.episode_length_buf.tolist() == [0, 0, 0]


def test_episode_lengths_can_be_set_to_spread_out_the_truncations(slider: Make):
    env = slider(episode_s=0.2)
    env.episode_length_buf = torch.tensor([0, 2, 4])
    cuts = [env.step(push(env))[3].tolist() for _ in range(5)]
    assert cuts == [[False, False, True], [False] * 3, [False, True, False], [False] * 3, [True, False, False]]


def test_rewards_are_weighed_and_logged_by_name(slider: Make):
    env = slider(episode_s=0.2, weights={"position": 3.0, "speed": -1.0})
    rewards = [env.step(push(env)) for _ in range(5)]
    total = torch.stack([reward for _, reward, *_ in rewards]).sum(0)
    log = rewards[-1][4]["log"]
    speed = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    distance = speed * 0.04 * (1 + 2 + 3 + 4 + 5)
    assert log["reward/position"] == pytest.approx(3.0 * float(distance.mean()), rel=1e-12)
    assert log["reward/speed"] == pytest.approx(-5 * float(speed.mean()), rel=1e-12)
    assert log["episode/return"] == pytest.approx(float(total.double().mean()), rel=1e-6)
    assert log["metric/speed"] == pytest.approx(float(speed.mean()), rel=1e-12)
    again = [env.step(push(env)) for _ in range(5)][-1][4]["log"]
    assert again == log  # the sums started anew


def test_noise_is_on_the_named_policy_term_only(slider: Make):
    env = slider(worlds=500, noise={"velocity": 0.3})
    obs, *_ = env.step(push(env))
    noise = obs["policy"] - obs["critic"][:, :3]
    assert not noise[:, [0, 2]].any()
    assert float(noise[:, 1].abs().max()) <= 0.3 + 1e-5  # the velocities, up to 50 m/s, are float32
    # Uniform on [-0.3, 0.3]: standard deviation 0.3 / sqrt(3), of which 500 samples give 3 % (1 sigma).
    assert float(noise[:, 1].std()) == pytest.approx(0.3 / math.sqrt(3), rel=0.12)


def test_spaces_and_terms_describe_what_comes(slider: Make):
    env = slider()
    assert list(env.observation_terms["policy"].items()) == [("position", 1), ("velocity", 1), ("last_action", 1)]
    obs, extras = env.reset()
    for group, values in obs.items():
        assert values.shape == env.observation_space[group].shape
        assert values.dtype == torch.float32
        assert env.single_observation_space[group].shape == values.shape[1:]
    assert (env.single_action_space.low.item(), env.single_action_space.high.item()) == (-10.0, 10.0)
    assert torch.equal(extras["final_obs"]["critic"], obs["critic"])


def test_actions_are_clipped_to_the_action_space(slider: Make):
    strong, strongest = slider(), slider()
    strong.step(push(strong, 10.0))
    obs, *_ = strongest.step(push(strongest, 1e30))
    assert torch.equal(strong.obs_buf["policy"], obs["policy"])
    assert obs["policy"][:, 2].tolist() == [10.0] * 3  # last_action is what was applied


def test_last_action_in_rewards_is_the_one_before(slider: Make, slider_class: Any):
    class Watch(slider_class):
        def rewards(self) -> dict[str, torch.Tensor]:
            pair = {"position": self.action[:, 0], "speed": self.last_action[:, 0]}
            return {name: value.double() for name, value in pair.items()}

    env = slider(cls=Watch, weights={"position": 1.0, "speed": 100.0})
    rewards = [float(env.step(push(env, force))[1][0]) for force in (1.0, 2.0, 3.0)]
    assert rewards == [1.0, 102.0, 203.0]


def test_reset_of_marked_worlds_leaves_the_others(slider: Make):
    env, twin = slider(), slider()
    for e in (env, twin):
        e.step(push(e, 1.0))
    obs, _ = env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    assert env.episode_length_buf.tolist() == [1, 0, 1]
    assert torch.equal(obs["critic"][[0, 2]], twin.obs_buf["critic"][[0, 2]])
    assert obs["critic"][1].tolist() == pytest.approx([0.0, 0.2, 0.0, 0.0])
    assert message(lambda: env.reset(options={"reset_msk": 1})) == (
        "unknown reset option 'reset_msk'; did you mean 'reset_mask'?"
    )
    assert "must be (3,) bool, not (2,)" in message(lambda: env.reset(options={"reset_mask": torch.ones(2).bool()}))


# Names and shapes, at construction


def test_unknown_names_are_answered_with_the_nearest(slider: Make):
    weights = {"position": 1.0, "speed": 1.0}
    assert message(lambda: slider(weights={**weights, "sped": 1.0})) == (
        "unknown reward term 'sped' in weights; did you mean 'speed'?"
    )
    assert message(lambda: slider(noise={"velocty": 1.0})) == (
        "unknown observation term 'velocty' in noise; did you mean 'velocity'?"
    )
    assert message(lambda: slider(weights={"position": 1.0})) == (
        "reward term speed has no weight; add weights.speed to the config"
    )


def test_a_task_says_how_current_its_derived_fields_are(slider: Make, slider_class: Any):
    class Seen(slider_class):
        def observe(self) -> dict[str, Any]:
            policy = {"seen": self.sim.bind("xpos")[:, 1, 0], "true": self.sim.qpos[:, 0]}
            return {"policy": policy, "critic": policy}

    class Current(Seen):
        stage = mujoco.mjtStage.mjSTAGE_POS

    for cls, age in ((Seen, 0.01), (Current, 0.0)):  # s: one physics step, or none
        env = slider(cls=cls)
        obs = env.step(torch.zeros(3, 1))[0]["policy"]
        speed = torch.tensor([0.1, 0.2, 0.3])
        torch.testing.assert_close(obs[:, 1] - obs[:, 0], speed * age, rtol=0, atol=1e-7)


def test_terms_of_the_wrong_shape_are_named(slider: Make, slider_class: Any):
    class WrongReward(slider_class):
        def rewards(self) -> dict[str, torch.Tensor]:
            return {"position": self.sim.qpos, "speed": self.sim.qvel[:, 0]}

    class WrongObservation(slider_class):
        def observe(self) -> dict[str, Any]:
            policy = {"position": self.sim.qpos[0]}
            return {"policy": policy, "critic": policy}

    class NoCritic(slider_class):
        def observe(self) -> dict[str, Any]:
            return {"policy": {"position": self.sim.qpos}}

    assert message(lambda: slider(cls=WrongReward)) == "reward term position has shape (3, 1); it must be (3,)"
    assert message(lambda: slider(cls=WrongObservation)) == (
        "observation term policy.position has shape (1,); it must be (3,) or (3, d)"
    )
    assert message(lambda: slider(cls=NoCritic)) == "NoCritic.observe returns no group 'critic'"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"control_dt": 0.025}, "control_dt 0.025 s is not a multiple of physics_dt 0.01 s"),
        ({"physics_dt": 0.0}, "physics_dt must be positive and finite, not 0.0"),
        ({"episode_s": math.inf}, "episode_s must be positive and finite, not inf"),
        ({"episode_s": math.nan}, "episode_s must be positive and finite, not nan"),
        ({"action_delay_s": -0.1}, "action_delay_s must be finite and not negative, not -0.1"),
        ({"action_delay_s": math.nan}, "action_delay_s must be finite and not negative, not nan"),
        ({"noise": {"position": -1.0}}, "noise.position must be finite and not negative, not -1.0"),
        ({"noise": {"position": math.nan}}, "noise.position must be finite and not negative, not nan"),
        ({"weights": {"position": math.nan}}, "weights.position must be finite, not nan"),
        ({"episode_s": 0.01}, "episode_s 0.01 s is shorter than control_dt 0.04 s"),
    ],
)
def test_config_out_of_range(slider: Make, config: dict, text: str):
    assert message(lambda: slider(**config)) == text


# What is not finite


def test_an_action_that_is_not_finite_or_fits_not_is_named(slider: Make):
    env = slider()
    env.step(push(env))
    action = push(env)
    action[2] = math.nan
    assert message(lambda: env.step(action)) == "action is not finite in world 2 at step 1: [nan]"
    assert message(lambda: env.step(torch.zeros(3, 2))) == "action has shape (3, 2), this environment takes (3, 1)"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_named(slider: Make, slider_class: Any, value: float):
    class Broken(slider_class):
        def rewards(self) -> dict[str, torch.Tensor]:
            terms = super().rewards()
            late = (self.sim.time > 0.1) & (torch.arange(3) == 1)
            return terms | {"speed": torch.where(late, value, terms["speed"])}

    env = slider(cls=Broken)
    env.step(push(env))
    env.step(push(env))
    assert message(lambda: env.step(push(env))) == f"reward term speed is not finite in world 1 at step 2: {value}"


def test_an_observation_that_is_not_finite_is_named(slider: Make, slider_class: Any):
    class Broken(slider_class):
        def observe(self) -> dict[str, Any]:
            groups = super().observe()
            late = (self.sim.time > 0.1) & (torch.arange(3) == 1)
            groups["critic"]["time"] = torch.where(late, 1e300, self.sim.time)  # finite, but not in float32
            return groups

    env = slider(cls=Broken)
    env.step(push(env))
    env.step(push(env))
    assert message(lambda: env.step(push(env))) == (
        "observation term critic.time is not finite in world 1 at step 2: 1e+300"
    )


def test_a_diverged_world_is_reset_and_counted_and_never_seen(slider: Make):
    env, twin = slider(), slider()
    first = env.obs_buf["critic"].clone()
    for e in (env, twin):
        e.step(push(e, 1.0))
    before = env.obs_buf["critic"].clone()
    env.sim.qvel[1, 0] = math.nan
    obs, reward, terminated, truncated, extras = env.step(push(env, 1.0))
    truth, true_reward, *_ = twin.step(push(twin, 1.0))
    others = [0, 2]
    assert terminated.tolist() == [False, True, False]
    assert not truncated.any()
    assert env.diverged_worlds == 1
    assert reward.tolist() == [true_reward[0], 0.0, true_reward[2]]
    for group in ("policy", "critic"):
        assert torch.equal(obs[group][others], truth[group][others])
        assert torch.isfinite(extras["final_obs"][group]).all()
    assert torch.equal(extras["final_obs"]["critic"][1], before[1])
    assert torch.equal(obs["critic"][1], first[1])
    assert all(math.isfinite(value) for value in extras["log"].values())
    assert all(torch.isfinite(values).all() for values in extras["metrics"].values())
    assert all(torch.isfinite(values.double()).all() for values in env.task.buffers.values())
    for _ in range(3):
        obs, _, terminated, *_ = env.step(push(env, 1.0))
        truth, *_ = twin.step(push(twin, 1.0))
        assert not terminated.any()
        assert torch.equal(obs["critic"][others], truth["critic"][others])
    assert env.diverged_worlds == 1


# Delay


@pytest.mark.parametrize("delay", [0, 1, 3, 4, 6, 8, 11])
def test_delay_acts_in_physics_steps(slider: Make, delay: int):
    env = slider(action_delay_s=delay * 0.01 + 0.003)  # rounded to whole physics steps
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(8, 3, 1, generator=generator) * 20 - 10
    reference = slider().sim
    for action in actions:
        env.step(action)
    for t in range(8 * 4):
        if t < delay:
            reference.ctrl[:] = 0
        else:
            reference.ctrl[:] = actions[(t - delay) // 4]
        reference.step()
    assert torch.equal(env.sim.qpos, reference.qpos)
    assert torch.equal(env.sim.qvel, reference.qvel)


def test_a_new_episode_does_not_feel_the_old_ones_actions(slider: Make):
    env = slider(action_delay_s=0.06)
    for _ in range(4):
        env.step(push(env, 10.0))
    env.reset(options={"reset_mask": torch.tensor([True, False, False])})
    speed = env.sim.qvel[:, 0].clone()
    env.step(push(env, 10.0))
    assert float(env.sim.qvel[0, 0]) == float(speed[0])
    assert (env.sim.qvel[1:, 0] > speed[1:]).all()


# Seeds and resume


def run(env: Env, steps: int, seed: int = 0) -> list[Any]:
    """Step under random actions, drawn from the number of the step; return everything that came back."""
    seen = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(seed + env.common_step_counter)
        action = torch.rand(env.num_envs, *env.single_action_space.shape, generator=generator) * 2 - 1
        obs, reward, terminated, truncated, extras = env.step(action)
        seen.append((obs, reward, terminated, truncated, extras["final_obs"], extras["log"]))
    return seen


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(itertools.starmap(same, zip(a, b, strict=True)))
    return a == b


BUSY = {"episode_s": 0.6, "push_every_s": (0.1, 0.3), "action_delay_s": 0.03}
"""Go2 with short episodes, frequent pushes and a delay of one and a half control steps."""


def test_same_seed_same_run_and_another_seed_another(env_of: Make):
    first, again, other = (run(env_of("Go2-Velocity-Flat", seed=seed, **BUSY), 40) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)
    assert any(step[3].any() for step in first)


def test_reset_with_a_seed_repeats(env_of: Make):
    env = env_of("Go2-Velocity-Flat", **BUSY)
    runs = []
    for _ in range(2):
        env.reset(seed=7)
        env.common_step_counter = 0
        runs.append(run(env, 20))
    assert same(*runs)


def test_resumes_bit_for_bit(env_of: Make):
    env = env_of("Go2-Velocity-Flat", worlds=6, **BUSY)
    run(env, 33)
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    after = run(env, 40)
    file.seek(0)
    resumed = env_of("Go2-Velocity-Flat", worlds=6, seed=99, **BUSY)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert same(run(resumed, 40), after)
    assert same(resumed.state_dict(), env.state_dict())
    assert any(step[5] for step in after)


def test_resume_into_another_environment_is_refused(slider: Make):
    state = slider(worlds=3).state_dict()
    assert "num_envs" in message(lambda: slider(worlds=4).load_state_dict(state))
    assert "action_queue" in message(lambda: slider(action_delay_s=0.5).load_state_dict(state))
