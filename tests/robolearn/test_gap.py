"""The gap's parameters change what they say, and its figures follow from the falls."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from robolearn import gap
from robolearn.environments import worlds_of
from robolearn.gap import Outcome, Parameter
from robolearn.training import TrainConfig, default_config, make_env
from sim.errors import UserError
from tasks.velocity import Velocity, VelocityConfig


@pytest.fixture
def config() -> TrainConfig:
    return default_config("Go2-Velocity-Flat", threads=1)


def parameter(config: TrainConfig, name: str) -> Parameter:
    return next(p for p in gap.parameters(config) if p.name == name)


def world(config: TrainConfig) -> Velocity:
    task = worlds_of(make_env(config, num_envs=3), "the test").task
    assert isinstance(task, Velocity)
    return task


def stand(observation: torch.Tensor) -> torch.Tensor:
    """Keep the default pose."""
    return torch.zeros(len(observation), 12)


def topple(observation: torch.Tensor) -> torch.Tensor:
    """Turn both left legs out and both right legs in."""
    return torch.tensor([1.0, 0.0, 0.0]).repeat(4).expand(len(observation), 12)


@pytest.mark.parametrize(("falls", "trials"), [(0, 10), (1, 64), (5, 10), (10, 10)])
def test_the_interval_is_where_the_count_is_just_not_surprising(falls: int, trials: int):
    low, high = gap.wilson(falls, trials)
    share = falls / trials
    for end in (low, high):
        # Both ends solve (share - p)^2 = z^2 p (1 - p) / n.
        assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / trials, abs=1e-12)
    assert 0 <= low <= share <= high <= 1
    assert high - low > 1e-3


def test_the_nominal_worlds_are_all_the_same_robot(config: TrainConfig):
    task = world(gap.nominal(config, 3.0))
    model = task.sim.model
    assert (task.sim.expand("body_mass") == torch.from_numpy(model.body_mass)).all()
    assert (task.sim.expand("geom_friction") == torch.from_numpy(model.geom_friction)).all()
    assert (task.config.episode_s, task.config.curriculum) == (3.0, False)
    assert task.config.noise == VelocityConfig().noise
    assert task.config.push_velocity == VelocityConfig().push_velocity


def test_the_values_include_the_nominal_one_and_ascend(config: TrainConfig):
    config = replace(config, env=replace(config.env, action_delay_s=0.013))
    for p in gap.parameters(config):
        assert p.nominal in p.values
        assert list(p.values) == sorted(set(p.values))
    assert parameter(config, "control delay").trained == (15.0, 15.0)  # rounded to physics steps, as the task does
    assert parameter(config, "control delay").values[0] == 5.0


def test_a_payload_weighs_what_it_says(config: TrainConfig):
    heavy = gap.with_values(gap.nominal(config, 1.0), [parameter(config, "payload")], {"payload": 2.5})
    task = world(heavy)
    base = task.robot.base
    np.testing.assert_allclose(task.sim.expand("body_mass")[:, base], task.sim.model.body_mass[base] + 2.5)
    light, most = parameter(config, "payload").trained
    factors = VelocityConfig().base_mass
    mass = task.sim.model.body_mass[base]
    assert (light, most) == pytest.approx((mass * (factors[0] - 1), mass * (factors[1] - 1)))


def test_friction_noise_and_delay_are_what_they_say(config: TrainConfig):
    values: dict[str, float] = {"foot friction": 0.25, "sensor noise": 3.0, "control delay": 20.0}
    chosen = [parameter(config, name) for name in values]
    task = world(gap.with_values(gap.nominal(config, 1.0), chosen, values))
    foot = task.sim.model.geom("FR_foot").id
    np.testing.assert_allclose(task.sim.expand("geom_friction")[:, foot], [task.sim.model.geom_friction[foot] / 4] * 3)
    assert task.config.noise == pytest.approx({name: 3 * a for name, a in VelocityConfig().noise.items()})
    assert task.config.action_delay_s == 0.02


def test_worlds_without_noise_start_and_are_commanded_like_the_others(config: TrainConfig):
    noise, nominal = parameter(config, "sensor noise"), gap.nominal(config, 1.0)
    # Noise does not reach a policy that looks at nothing, so nothing may differ.
    assert len({gap.measure(stand, gap.with_values(nominal, [noise], {noise.name: v}), 4).errors["velocity_error"]
                for v in noise.values}) == 1  # fmt: skip


def test_falls_are_counted_and_errors_are_the_tasks(config: TrainConfig):
    nominal = gap.nominal(config, 4.0)
    calm = replace(nominal, env=replace(nominal.env, push_velocity=0.0))
    stood, toppled = gap.measure(stand, calm, 8), gap.measure(topple, calm, 8)
    assert (stood.falls, toppled.falls, stood.episodes) == (0, 8, 8)
    assert toppled.fall_share == 1.0
    assert set(stood.errors) == {"velocity_error", "yaw_rate_error"}
    # Standing still, the error is the command's size: at most that of the corner of its range.
    assert 0.1 < stood.errors["velocity_error"] < math.hypot(1.0, 0.5)
    assert gap.measure(stand, calm, 8) == stood
    assert gap.measure(stand, calm, 8, seed=1) != stood


def outcomes(falls: Sequence[int]) -> list[Outcome]:
    return [Outcome(20, n, {}) for n in falls]


def probe(values: tuple[float, ...], nominal: float) -> Parameter:
    return Parameter("friction", "mu", nominal, (nominal, nominal), values, lambda env, value: env)


@pytest.mark.parametrize(
    ("falls", "margins", "text"),
    [
        # 2 of 20 is the share of 0.1 that counts as failing.
        ((0, 0, 0, 0, 0), (None, None), "friction: bears all that was tried, 1 to 5 mu"),
        ((0, 0, 0, 0, 4), (None, 4.5), "friction: falls at +1.5 mu"),
        ((8, 0, 0, 2, 20), (1.75, 4.0), "friction: falls at -1.25 mu and +1 mu"),
        ((20, 1, 0, 1, 1), (1 + 18 / 19, None), "friction: falls at -1.05 mu"),
        ((0, 0, 2, 0, 0), (3.0, 3.0), "friction: falls already at the nominal 3 mu"),
    ],
)
def test_the_margin_is_where_the_share_of_falls_is_reached(
    falls: tuple[int, ...], margins: tuple[float | None, float | None], text: str
):
    p = probe((1.0, 2.0, 3.0, 4.0, 5.0), 3.0)
    assert gap.margins(p, outcomes(falls)) == pytest.approx(margins)
    assert gap.margin_text(p, outcomes(falls)) == text
    low, high = margins
    assert gap.borne(p, outcomes(falls)) == pytest.approx((low or 1.0, high or 5.0))


def test_a_sweep_measures_every_value(config: TrainConfig):
    p = Parameter("episode", "s", 1.0, (1.0, 1.0), (0.5, 1.0), lambda env, value: replace(env, episode_s=value))
    found = gap.sweep(stand, gap.nominal(config, 9.0), p, 4)
    assert [outcome.episodes for outcome in found] == [4, 4]
    assert found[0] != found[1]


def weaker(push: float) -> Callable[[VelocityConfig, float], VelocityConfig]:
    return lambda env, value: replace(env, push_velocity=push * value)


def test_the_search_puts_the_worst_combination_first(config: TrainConfig):
    base = gap.nominal(config, 2.0)
    base = replace(base, env=replace(base.env, push_every_s=(0.3, 0.6)))
    push = Parameter("push", "m/s", 0.0, (0.0, 0.0), (0.0, 4.0), weaker(1.0))
    trials = gap.search(stand, base, {push: (0.0, 4.0)}, trials=6, worlds=8)
    falls = [trial.outcome.falls for trial in trials]
    assert falls == sorted(falls, reverse=True)
    assert falls[0] > falls[-1]
    assert all(0 <= trial.values["push"] <= 4 for trial in trials)
    assert trials[0].values["push"] > trials[-1].values["push"]
    again = gap.measure(stand, gap.with_values(base, [push], trials[0].values), 8)
    assert again == trials[0].outcome


def test_a_trace_ends_with_the_first_fall(config: TrainConfig):
    nominal = gap.nominal(config, 3.0)
    fallen = gap.trace(topple, nominal, 4)
    assert fallen.fell
    assert fallen.time[-1] < 3.0 - 0.02
    assert fallen.tilt[-1] > 0.5 or fallen.height[-1] < 0.2  # one step before it counted
    np.testing.assert_allclose(np.diff(fallen.time), 0.02)
    np.testing.assert_array_equal(fallen.qpos[:, 2], fallen.height)
    calm = replace(nominal, env=replace(nominal.env, push_velocity=0.0))
    stood = gap.trace(stand, calm, 4)
    assert not stood.fell
    assert len(stood.time) == len(stood.qpos) == len(stood.velocity) == 150


def test_a_task_without_falls_has_no_gap_to_measure():
    with pytest.raises(UserError, match="CartPole-Balance has no friction to vary"):
        gap.nominal(default_config("CartPole-Balance"), 1.0)
    with pytest.raises(UserError, match="HalfCheetah has no termination 'fell'"):
        gap.measure(stand, default_config("HalfCheetah", threads=1), 1)
