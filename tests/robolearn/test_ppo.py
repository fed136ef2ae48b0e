"""PPO against what theory says of it."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from robolearn.algorithms.ppo import PPO, PPOConfig, mirror_loss
from robolearn.algorithms.surrogates import SURROGATES, clip
from robolearn.policies.gaussian import log_prob
from sim.backends import make_simulation
from sim.errors import UserError
from sim.mirror import Mirror
from tasks.env import Env
from tasks.registry import make_task
from tasks.task import Task


def _env(task: Task[Any], num_envs: int, seed: int = 0) -> Env:
    return Env(task, make_simulation("mujoco", task.model(), num_envs, threads=1), seed)


def _cartpole(num_envs: int = 8, seed: int = 0) -> Env:
    return _env(make_task("CartPole-Swingup", episode_s=0.5), num_envs, seed)


def test_the_value_of_an_endless_constant_reward_is_that_of_no_truncation(constant_env: Callable[..., Env]) -> None:
    env = constant_env(32)
    gamma = 0.9
    algorithm = PPO(env, PPOConfig(horizon=20, gamma=gamma, hidden=(16,), learning_rate=3e-3, epochs=20))
    for _ in range(60):
        algorithm.collect(env)
        algorithm.update()
    value = algorithm.critic(env.obs_buf["critic"]).mean().item()
    # Taken for terminations, the truncations would make it (1 - gamma^10) / (1 - gamma) = 6.5 at most.
    assert value == pytest.approx(1 / (1 - gamma), rel=0.02)


def test_before_the_first_gradient_step_every_ratio_is_one() -> None:
    env = _cartpole()
    algorithm = PPO(env, PPOConfig(horizon=16, hidden=(32, 32)))
    for _ in range(3):
        algorithm.collect(env)
        r = algorithm.rollout
        mean, log_std = algorithm.policy.distribution(r.policy_obs)
        ratio = (log_prob(r.u, mean, log_std) - r.log_prob).exp()
        # The same float32 operations on a batch of another size: a few roundings of a log density of size 10.
        assert (ratio - 1).abs().max() < 1e-5
        algorithm.update()


def test_one_gradient_step_is_the_gradient_of_the_loss_as_written() -> None:
    env = _cartpole()
    config = PPOConfig(horizon=8, hidden=(16,), epochs=1, minibatches=1, max_grad_norm=1e9, target_kl=0.0)
    algorithm = PPO(env, config)
    algorithm.collect(env)
    policy, critic = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.critic)
    algorithm.update()
    r = algorithm.rollout
    mean, log_std = policy.distribution(r.policy_obs)
    ratio = (log_prob(r.u, mean, log_std) - r.log_prob).exp()
    entropy = torch.distributions.Normal(mean, log_std.exp()).entropy().sum(-1).mean()
    loss = clip(ratio, r.advantage, config.clip).mean() + (critic(r.critic_obs) - r.target).square().mean()
    (loss - config.entropy_coefficient * entropy).backward()
    # Adam's first step is lr * g / (|g| + eps): its sign is the gradient's wherever that is not tiny.
    for before, after in [(policy, algorithm.policy), (critic, algorithm.critic)]:
        for p, q in zip(before.parameters(), after.parameters(), strict=True):
            assert p.grad is not None
            clear = p.grad.abs() > 1e-3
            step = q.detach() - p.detach()
            expected = -config.learning_rate * p.grad / (p.grad.abs() + 1e-5)
            torch.testing.assert_close(step[clear], expected[clear], rtol=1e-2, atol=1e-6)


def test_next_values_are_those_of_the_true_last_observations() -> None:
    env = _cartpole()
    algorithm = PPO(env, PPOConfig(horizon=30, hidden=(16,)))
    finals: list[torch.Tensor] = []
    step = env.step

    def recording(action: torch.Tensor) -> Any:
        result = step(action)
        finals.append(result[4]["final_obs"]["critic"])
        return result

    env.step = recording  # type: ignore[method-assign]
    algorithm.collect(env)
    assert algorithm.rollout.truncated.any()
    with torch.no_grad():
        expected = algorithm.critic(torch.stack(finals))
    torch.testing.assert_close(algorithm.rollout.next_value, expected, rtol=1e-4, atol=1e-5)


def test_same_seed_same_parameters_other_seed_others() -> None:
    def trained(seed: int) -> torch.Tensor:
        env = _cartpole(seed=seed)
        algorithm = PPO(env, PPOConfig(horizon=8, hidden=(16,)), seed)
        for _ in range(3):
            algorithm.collect(env)
            algorithm.update()
        return torch.cat([p.detach().flatten() for p in algorithm.policy.parameters()])

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


@pytest.mark.parametrize(
    "options",
    [{}, {"normalize_reward": True}, {"learning_rate_decay": True}]
    + [{"surrogate": name} for name in SURROGATES if name != "clip"],
)
def test_resuming_continues_bit_for_bit(options: dict[str, Any]) -> None:
    config = PPOConfig(horizon=8, hidden=(16,), **options)

    def some(env: Env, algorithm: PPO, iterations: Iterable[int]) -> list[dict[str, float]]:
        return [algorithm.collect(env) | algorithm.update(i / 6) for i in iterations]

    env = _cartpole()
    whole = PPO(env, config)
    expected = some(env, whole, range(6))
    env = _cartpole()
    first = PPO(env, config)
    logged = some(env, first, range(3))
    saved, worlds = copy.deepcopy(first.state_dict()), copy.deepcopy(env.state_dict())
    env = _cartpole(seed=5)
    second = PPO(env, config, seed=5)
    second.load_state_dict(saved)
    env.load_state_dict(worlds)
    logged += some(env, second, range(3, 6))
    assert logged == expected
    for a, b in [(whole.policy, second.policy), (whole.critic, second.critic), (whole.surrogate, second.surrogate)]:
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "bpo"])
def test_one_epoch_of_one_batch_is_advantage_actor_critic(name: str) -> None:
    """Huang et al. 2022, "A2C is a special case of PPO": at ratio 1 the gradient is that of -A log pi."""
    env = _cartpole()
    config = PPOConfig(
        surrogate=name, horizon=8, lam=1.0, epochs=1, minibatches=1, target_kl=0.0, max_grad_norm=0.5, hidden=(16,)
    )
    algorithm = PPO(env, config)
    policy, critic = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.critic)

    def rmsprop(*modules: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop([p for m in modules for p in m.parameters()], lr=7e-4, alpha=0.99, eps=1e-5)

    algorithm.optimizer = rmsprop(algorithm.policy, algorithm.critic)  # type: ignore[assignment]
    algorithm.collect(env)
    algorithm.update()
    r, optimizer = algorithm.rollout, rmsprop(policy, critic)
    mean, log_std = policy.distribution(r.policy_obs)
    loss = -(r.advantage * log_prob(r.u, mean, log_std)).mean() + (critic(r.critic_obs) - r.target).square().mean()
    entropy = torch.distributions.Normal(mean, log_std.exp()).entropy().sum(-1).mean()
    (loss - config.entropy_coefficient * entropy).backward()
    torch.nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], config.max_grad_norm)
    optimizer.step()
    for mine, written in [(algorithm.policy, policy), (algorithm.critic, critic)]:
        for p, q in zip(mine.parameters(), written.parameters(), strict=True):
            # RMSprop's first step is 10 lr wherever the gradient is far from eps; shuffled sums round otherwise.
            torch.testing.assert_close(p, q, rtol=0, atol=1e-2 * 7e-3)


def test_the_learning_rate_follows_the_divergence() -> None:
    env = _cartpole()
    algorithm = PPO(env, PPOConfig(target_kl=0.01, learning_rate=1e-3))
    rate = lambda: algorithm.optimizer.param_groups[0]["lr"]  # noqa: E731
    for kl, expected in [(0.03, 1e-3 / 1.5), (0.01, 1e-3 / 1.5), (0.004, 1e-3)]:
        algorithm._adapt_learning_rate(kl)
        assert rate() == pytest.approx(expected)
    assert algorithm.optimizer.param_groups[1]["lr"] == 1e-3
    for _ in range(30):
        algorithm._adapt_learning_rate(1.0)
    assert rate() == pytest.approx(1e-5)


def test_a_non_finite_gradient_is_skipped_and_a_hundred_in_a_row_end_the_run() -> None:
    env = _cartpole()
    algorithm = PPO(env, PPOConfig(horizon=8, hidden=(16,), epochs=1, minibatches=1))
    algorithm.collect(env)
    algorithm.rollout.reward[0, 0] = torch.nan
    before = [p.detach().clone() for p in algorithm.policy.parameters()]
    algorithm.update()
    assert algorithm.skipped == 1
    assert all(torch.equal(p, q) for p, q in zip(before, algorithm.policy.parameters(), strict=True))
    algorithm.skipped = 99
    with pytest.raises(UserError, match="100 gradients in a row"):
        algorithm.update()


def test_the_mirror_loss_is_zero_for_a_symmetric_policy_only() -> None:
    env = _cartpole()
    policy = PPO(env, PPOConfig(hidden=(16,))).policy
    flip = Mirror.signs(-1, -1, 1, -1, -1)
    observation = torch.randn(64, 5)
    mean, _ = policy.distribution(observation)
    assert mirror_loss(policy, observation, mean, flip, Mirror.signs(-1)) > 0

    class Odd(torch.nn.Module):
        def distribution(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[:, :1] ** 3 + x[:, 1:2] * x[:, 2:3], torch.zeros(1)

    mean, _ = Odd().distribution(observation)
    assert mirror_loss(Odd(), observation, mean, flip, Mirror.signs(-1)) == 0  # type: ignore[arg-type]


def test_a_task_without_symmetry_refuses_the_mirror_loss() -> None:
    with pytest.raises(UserError, match="no mirror symmetry"):
        PPO(_cartpole(), PPOConfig(symmetry_coefficient=1.0))


@pytest.mark.parametrize(("field", "value"), [("gamma", 1.5), ("horizon", 0), ("clip", 0.0), ("surrogate", "clp")])
def test_a_value_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        PPOConfig(**{field: value})
