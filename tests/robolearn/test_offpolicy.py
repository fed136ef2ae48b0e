"""The off-policy core against what theory says of it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robolearn.algorithms import offpolicy
from robolearn.algorithms.offpolicy import OffPolicy
from robolearn.algorithms.offpolicy_config import OffPolicyConfig
from robolearn.algorithms.registry import algorithm_class
from robolearn.buffers.replay import Batch
from robolearn.policies.squashed import tanh_log_slope
from sim.errors import UserError
from tasks.env import Env
from tasks.pendulum import PendulumConfig, PendulumSwingup
from tasks.task import Task, TaskConfig, Terms, terms
from tests.small_offpolicy import ALGORITHMS, SMALL, env_of, made, pendulum

_POINT = """<mujoco><option timestep="0.1"><flag autoreset="disable"/></option>
<worldbody><body><joint name="x" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>"""


@pytest.mark.parametrize("changes", [{}, {"n_steps": 3}, {"critic": "gaussian"}, {"critic": "categorical"}])
def test_the_value_of_an_endless_constant_reward_is_that_of_no_truncation(
    constant_env: Callable[..., Env], changes: dict[str, Any]
) -> None:
    env = constant_env(8)
    gamma = 0.9
    options = {"learning_rate": 3e-3, "polyak": 0.2, "value_range": (0.0, 20.0), "iteration_steps": 800}
    algorithm = made("ddpg", env, gamma=gamma, **options, **changes)
    algorithm.collect(env)
    observation = env.obs_buf["critic"]
    with torch.no_grad():
        action = torch.tanh(algorithm.policy.output(observation))
    value = algorithm.critic.mean(algorithm.value(observation, action)).mean().item()
    # Taken for terminations, the truncations would make it (1 - gamma^10) / (1 - gamma) = 6.5 at most.
    assert value == pytest.approx(1 / (1 - gamma), rel=0.03)


def _batch(algorithm: OffPolicy) -> Batch:
    torch.manual_seed(5)
    a = len(algorithm.policy.centre)
    fields = {"policy": torch.randn(32, 3), "next_policy": torch.randn(32, 3), "action": torch.rand(32, a) * 2 - 1}
    return Batch(fields, torch.randn(32), 0.99 * (torch.rand(32) < 0.8).float(), torch.ones(32))


def test_td3s_target_is_the_smoothed_action_of_the_slow_policy_under_the_slow_critics() -> None:
    env = pendulum()
    algorithm = made("td3", env)
    with torch.no_grad():
        for parameter in (*algorithm.slow_policy.parameters(), *algorithm.slow_value.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
    batch, obs = _batch(algorithm), "policy"
    twin = torch.Generator()
    twin.set_state(algorithm.generator.get_state())
    with torch.no_grad():
        mean = torch.tanh(algorithm.slow_policy.network(batch.fields["next_policy"])[0])
        action = (mean + (0.2 * torch.randn(32, 1, generator=twin)).clamp(-0.5, 0.5)).clamp(-1, 1)
        following = algorithm.slow_value.network(torch.cat((batch.fields["next_policy"], action), 1))[..., 0]
        y = batch.reward + batch.discount * torch.minimum(following[0], following[1])
        q = algorithm.value.network(torch.cat((batch.fields[obs], batch.fields["action"]), 1))[..., 0]
    metrics = algorithm._critic_step(batch)
    expected = (q[0] - y).square().mean() + (q[1] - y).square().mean()
    assert metrics["loss/value"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_sacs_losses_are_those_of_the_paper() -> None:
    env = pendulum()
    algorithm = made("sac", env, initial_alpha=0.3)
    batch = _batch(algorithm)
    twin = torch.Generator()
    twin.set_state(algorithm.generator.get_state())
    policy, value = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.value)

    def drawn(observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = policy.network(observation)[0].chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = mean + log_std.exp() * torch.randn(32, 1, generator=twin)
        return torch.tanh(u), (normal.log_prob(u) - tanh_log_slope(u)).sum(-1)

    def q(network: Any, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return network.network(torch.cat((observation, action), 1))[..., 0]

    action, log_prob = drawn(batch.fields["next_policy"])
    following = q(algorithm.slow_value, batch.fields["next_policy"], action).amin(0)
    y = (batch.reward + batch.discount * (following - 0.3 * log_prob)).detach()
    critic_loss = (q(value, batch.fields["policy"], batch.fields["action"]) - y).square().mean(1).sum()
    algorithm._note(algorithm._critic_step(batch))
    action, log_prob = drawn(batch.fields["policy"])
    policy_loss = (0.3 * log_prob - q(algorithm.value, batch.fields["policy"], action).amin(0)).mean()
    algorithm._note(algorithm._policy_step(batch))
    metrics = algorithm.update()
    assert metrics["loss/value"] == pytest.approx(critic_loss.item(), rel=1e-5)
    assert metrics["loss/policy"] == pytest.approx(policy_loss.item(), rel=1e-5)
    # Adam's first step is its learning rate against the sign of the gradient, log_prob + |A| above zero or below.
    sign = torch.sign(-(log_prob.mean() - 1.0))
    moved = np.log(metrics["policy/temperature"] / 0.3)
    assert moved == pytest.approx(-3e-4 * sign.item(), rel=1e-3)
    # The policy's parameters moved against the gradient of its loss.
    (gradient,) = torch.autograd.grad(policy_loss, policy.network.flat)
    clear = gradient.abs() > 1e-4
    step = (algorithm.policy.network.flat - policy.network.flat).detach()
    torch.testing.assert_close(step[clear], -3e-4 * gradient.sign()[clear], rtol=1e-2, atol=0)


def test_only_the_networks_whose_turn_it_is_move() -> None:
    env = pendulum()
    algorithm = made("td3", env, policy_delay=2)
    for _ in range(20):
        algorithm._env_step(env)
    before = {name: copy.deepcopy(getattr(algorithm, name).state_dict()) for name in ("policy", "value", "slow_value")}

    def moved() -> list[str]:
        return [
            name
            for name, state in before.items()
            if not all(torch.equal(v, getattr(algorithm, name).state_dict()[k]) for k, v in state.items())
        ]

    algorithm.gradient_step()
    assert moved() == ["value"]
    value = copy.deepcopy(algorithm.value.network.flat.detach())
    algorithm.gradient_step()
    assert moved() == ["policy", "value", "slow_value"]
    slow, fast = algorithm.slow_value.network.flat, algorithm.value.network.flat.detach()
    assert not torch.equal(value, fast)
    start = before["slow_value"]["network.flat"]
    torch.testing.assert_close(slow, start + 0.005 * (fast - start), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resuming_continues_bit_for_bit(name: str) -> None:
    options = {"normalize_observation": True, "n_steps": 3, "capacity": 256, "kl_period": 50}
    env = pendulum()
    whole = made(name, env, **options)
    expected = [whole.collect(env) | whole.update() for _ in range(6)]
    env = pendulum()
    first = made(name, env, **options)
    logged = [first.collect(env) | first.update() for _ in range(3)]
    saved, worlds = copy.deepcopy(first.state_dict()), copy.deepcopy(env.state_dict())
    env = pendulum(seed=5)
    second = made(name, env, seed=5, **options)
    second.load_state_dict(saved)
    env.load_state_dict(worlds)
    logged += [second.collect(env) | second.update() for _ in range(3)]
    assert logged == expected
    ours, theirs = second.state_dict(), whole.state_dict()
    for part in ("policy", "value", "slow_value", "slow_policy", "bonus", "replay"):
        for key, value in ours[part].items():
            other = theirs[part][key]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_seed_same_parameters_other_seed_others(name: str) -> None:
    def trained(seed: int) -> torch.Tensor:
        env = pendulum(seed=seed)
        algorithm = made(name, env, seed)
        algorithm.collect(env)
        return algorithm.policy.network.flat.detach()

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


def test_both_precisions_learn_the_same(constant_env: Callable[..., Env]) -> None:
    values = []
    for precision in ("float32", "bfloat16"):
        env = constant_env(8)
        algorithm = made(
            "ddpg", env, gamma=0.5, learning_rate=3e-3, polyak=0.05, iteration_steps=300, precision=precision
        )
        algorithm.collect(env)
        values.append(algorithm.value(env.obs_buf["critic"], torch.zeros(8, 1)).mean().item())
    assert values == pytest.approx([2.0, 2.0], rel=0.03)


@pytest.mark.parametrize(("cost", "warnings"), [(63.4, 1), (0.4, 0)])
def test_a_format_that_this_processor_emulates_is_warned_of(
    cost: float, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offpolicy, "relative_cost", lambda precision: cost)
    made("sac", pendulum(), precision="bfloat16")
    assert len(caplog.messages) == warnings
    assert all("bfloat16 takes 63.4 times as long as in float32" in message for message in caplog.messages)
    caplog.clear()
    made("sac", pendulum())
    assert caplog.messages == []


def test_what_is_stored_is_the_true_last_observation_and_both_flags() -> None:
    env = pendulum(num_envs=2)
    algorithm = made("sac", env, warmup=10_000)
    finals = []
    step = env.step

    def recording(action: torch.Tensor) -> Any:
        result = step(action)
        finals.append((result[4]["final_obs"]["policy"].clone(), result[2].clone(), result[3].clone()))
        return result

    env.step = recording  # type: ignore[method-assign]
    algorithm.collect(env)
    rows = algorithm.replay.state_dict()["rows"]
    columns = algorithm.replay.slices
    next_obs, terminated, truncated = (torch.stack(values) for values in zip(*finals, strict=True))
    assert truncated.any()
    assert torch.equal(rows[..., columns["next_policy"]], next_obs)
    assert torch.equal(rows[..., columns["terminated"]].squeeze(-1), terminated.float())
    assert torch.equal(rows[..., columns["truncated"]].squeeze(-1), truncated.float())
    assert "critic" not in columns


def test_a_critic_that_sees_more_than_the_policy_has_its_own_rows() -> None:
    env = env_of(PendulumSwingup(PendulumConfig(noise={"velocity": 0.5})), 4)
    algorithm = made("sac", env)
    algorithm.collect(env)
    batch = algorithm.replay.sample(32)
    assert not torch.equal(batch.fields["policy"], batch.fields["critic"])
    assert algorithm.policy_steps > 0


def test_statistics_are_taken_once_from_each_frame_and_from_none_in_a_gradient_step() -> None:
    env = pendulum()
    algorithm = made("sac", env, normalize_observation=True)
    algorithm.collect(env)
    normalizer = algorithm.policy.normalizer
    assert normalizer is not None
    assert normalizer.count.item() == 30 * 4
    assert algorithm.slow_value.normalizer is algorithm.value.normalizer
    before = normalizer.mean.clone()
    algorithm.gradient_step()
    assert torch.equal(normalizer.mean, before)


def test_a_policy_given_to_begin_with_is_what_its_copies_begin_with() -> None:
    env = pendulum()
    for name in ("td3", "mdpo_off"):
        algorithm = made(name, env, warmup=10_000)
        given = made(name, env, seed=7)
        algorithm.policy.load_state_dict(given.policy.state_dict())
        algorithm.collect(env)
        copied = algorithm.slow_policy if name == "td3" else algorithm.bonus.old
        assert torch.equal(copied.network.flat, given.policy.network.flat)  # type: ignore[union-attr, arg-type]


def test_nothing_is_learned_before_the_warm_up_is_over() -> None:
    env = pendulum()
    algorithm = made("sac", env, warmup=4 * 30)
    stats = algorithm.collect(env) | algorithm.update()
    assert algorithm.critic_steps == 1  # the step that ends the warm-up is followed by the first gradient step
    assert stats["replay/size"] == 120.0
    columns = algorithm.replay.slices["action"]
    actions = algorithm.replay.state_dict()["rows"][..., columns]
    # Of 120 uniform draws, the mean of the square has a standard error of 0.027.
    assert actions.square().mean().item() == pytest.approx(1 / 3, abs=0.11)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"head": "detrministic"}, "unknown head 'detrministic'.*deterministic"),
        ({"critic": "c51"}, "unknown critic"),
        ({"batch_size": 600, "capacity": 512}, "batch_size 600 is more than the replay's capacity 512"),
        ({"head": "deterministic"}, "bonus temperature needs a head with a density"),
        ({"gamma": 1.5}, "gamma"),
        ({"log_std_range": (2.0, -2.0)}, "log_std_range must rise"),
        ({"value_range": (1.0, 1.0)}, "value_range must rise"),
        ({"exploration_noise": (0.2, 0.1)}, "exploration_noise must rise"),
        ({"policy_delay": 0}, "policy_delay must be at least 1"),
        ({"polyak": 0.0}, "polyak must be positive"),
        ({"precision": "float16"}, "unknown precision"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError, match=error):
        OffPolicyConfig(**changes)


def test_a_batch_larger_than_what_the_worlds_have_room_for_is_refused() -> None:
    with pytest.raises(UserError, match="batch_size 32 is more than the replay's capacity for 20 worlds"):
        made("sac", pendulum(20), capacity=39)


@pytest.mark.parametrize(("low", "high"), [(-np.inf, 1.0), (0.5, 0.5)])
def test_an_action_without_a_range_is_refused(low: float, high: float) -> None:
    env = pendulum()
    space = env.single_action_space
    space.low[:], space.high[:] = low, high
    with pytest.raises(UserError, match=r"action 0 ranges from .* need finite limits"):
        made("sac", env)


def test_networks_that_are_no_longer_finite_end_the_run() -> None:
    env = pendulum()
    algorithm = made("sac", env)
    algorithm.collect(env)
    with torch.no_grad():
        algorithm.value.network.flat[0] = torch.nan
    algorithm.gradient_step()
    with pytest.raises(UserError, match=r"loss/value.*not finite; lower learning_rate"):
        algorithm.update()


_COMBINATIONS: list[dict[str, Any]] = [
    {"head": head, "bonus": bonus, "critic": critic, "critic_network": network, "target": target}
    for head in ("deterministic", "tanh_gaussian", "mixture")
    for bonus in ("none", "temperature", "kl")
    if head != "deterministic" or bonus == "none"
    for critic in ("scalar", "gaussian", "categorical")
    for network in ("mlp", "hyper")
    for target in ("min", "average")
]


def test_every_combination_of_the_axes_learns_from_what_it_sees() -> None:
    env = pendulum()
    for combination in _COMBINATIONS:
        algorithm = OffPolicy(env, OffPolicyConfig(**{**SMALL, "iteration_steps": 17}, **combination))
        before = [p.clone() for p in (*algorithm.policy.parameters(), *algorithm.value.parameters())]
        algorithm.collect(env)
        metrics = algorithm.update()
        assert metrics["loss/value"] > 0, combination
        after = (*algorithm.policy.parameters(), *algorithm.value.parameters())
        assert all(not torch.equal(p, q) for p, q in zip(before, after, strict=True)), combination


@pytest.mark.parametrize("critic", ["scalar", "gaussian", "categorical"])
def test_the_average_of_a_constant_reward_is_that_reward_and_nothing_is_in_excess_of_it(
    constant_env: Callable[..., Env], critic: str
) -> None:
    env = constant_env(8, reward=3.0)
    options = {"learning_rate": 3e-3, "average_learning_rate": 0.03, "polyak": 0.1, "value_range": (-20.0, 20.0)}
    algorithm = made("aro_ddpg", env, iteration_steps=500, critic=critic, **options)
    algorithm.collect(env)
    first = algorithm.update()
    algorithm.collect(env)
    second = algorithm.update()
    assert first["value/average_reward"] == pytest.approx(3.0, rel=0.02)
    assert second["value/average_reward"] == pytest.approx(3.0, rel=0.02)
    # Were the average not taken off, the undiscounted value would have risen by 3 a step.
    assert abs(second["value/mean"] - first["value/mean"]) < 10


def test_nearness_to_the_old_policy_costs_as_written_and_the_old_one_is_renewed() -> None:
    env = pendulum()
    algorithm = made("mdpo_off", env, kl_coefficient=0.7, entropy_coefficient=0.2, kl_period=5)
    bonus, policy = algorithm.bonus, algorithm.policy
    old = copy.deepcopy(policy)
    with torch.no_grad():
        policy.network.flat.add_(0.1 * torch.randn_like(policy.network.flat))
        observation = torch.randn(32, 3)
        sample = policy.sample(policy.output(observation), algorithm.generator)
        then, now = (p.log_prob(p.network(observation)[0], sample.u) for p in (old, policy))
        torch.testing.assert_close(sample.log_prob, now, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(bonus.cost(observation, sample), 0.7 * now - 0.5 * then, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(bonus.following(sample), -0.2 * now, rtol=1e-4, atol=1e-4)
        bonus.policy_changed(policy, 4)
        assert not torch.equal(bonus.cost(observation, sample), 0.2 * sample.log_prob)
        bonus.policy_changed(policy, 5)
        torch.testing.assert_close(bonus.cost(observation, sample), 0.2 * now, rtol=1e-4, atol=1e-4)


@dataclass(kw_only=True)
class _RegulatorConfig(TaskConfig):
    physics_dt: float = 0.1
    control_dt: float = 0.1
    episode_s: float = 1.0  # short, so that most states are not near 0
    weights: dict[str, float] = terms(state=-1.0, effort=-0.5)


class _Regulator(Task[_RegulatorConfig]):
    """A mass to be brought to rest at 0, at quadratic cost."""

    Config = _RegulatorConfig

    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(_POINT)

    def _state(self) -> torch.Tensor:
        return torch.cat((self.sim.qpos, self.sim.qvel), 1)

    def observe(self) -> dict[str, Terms]:
        state = {"state": self._state() * 4.0}
        return {"policy": state, "critic": state}

    def rewards(self) -> Terms:
        return {"state": 2 * self._state().square().sum(1), "effort": 2 * self.action.square().sum(1)}

    def reset(self, ids: torch.Tensor) -> None:
        self.sim.qpos[ids] = self.uniform(-0.4, 0.4, len(ids), 1)
        self.sim.qvel[ids] = self.uniform(-0.4, 0.4, len(ids), 1)


def _riccati(gamma: float) -> np.ndarray:
    """Return the gain (1, 2) of the discounted regulator, whose cost is that of the state the action leads to."""
    h = 0.1
    a, b = np.array([[1.0, h], [0.0, 1.0]]), np.array([[h * h], [h]])  # semi-implicit Euler
    p = np.zeros((2, 2))
    for _ in range(5000):
        following = np.eye(2) + gamma * p
        gain = np.linalg.solve(0.5 + b.T @ following @ b, b.T @ following @ a)
        p = a.T @ following @ (a - b @ gain)
    return gain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_the_gain_of_a_linear_regulator_is_that_of_the_riccati_equation(name: str) -> None:
    env = env_of(_Regulator(_RegulatorConfig()), 8)
    gamma = 0.9
    made = algorithm_class(name)
    config = made.Config(
        hidden=(64, 64), activation="tanh", gamma=gamma, batch_size=256, warmup=2000, iteration_steps=500,
        learning_rate=1e-3, polyak=0.02, exploration_noise=(0.3, 0.3), capacity=100_000,
    )  # fmt: skip
    algorithm = made(env, config)
    for _ in range(9):
        algorithm.collect(env)
    for optimizer in (algorithm.critic_optimizer, algorithm.policy_optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
    states = torch.rand(2000, 2) * 0.6 - 0.3
    gains = []
    for _ in range(5):  # the mean of a few, for the noise of the gradients stays in each
        algorithm.collect(env)
        with torch.no_grad():
            action = algorithm.policy(states * 4.0)
        linear = torch.linalg.lstsq(torch.cat((states, torch.ones(2000, 1)), 1), action).solution
        gains.append(-linear[:2, 0])
    gain, expected = torch.stack(gains).mean(0), torch.from_numpy(_riccati(gamma)[0]).float()
    assert ((gain - expected).norm() / expected.norm()).item() < 0.05
