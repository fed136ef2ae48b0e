"""Action value gradient: each part against an oracle, then whole."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.runtime import Policy
from robolearn import checkpoint, exporting
from robolearn import run as runs
from robolearn.algorithms.avg import AVG, AVGConfig, ReturnSpread, UnitFeatures, policy_loss, value_loss
from robolearn.loading import load
from robolearn.training import TrainConfig, default_config, make_env, train
from sim.errors import UserError
from tasks.vector_env import VectorEnv

SMALL: dict[str, Any] = {"hidden": (16, 16), "iteration_steps": 30}


def _pendulum(num_envs: int = 1, seed: int = 0) -> VectorEnv:
    config = default_config("Pendulum-Swingup", "avg", num_envs=num_envs, threads=1, env={"episode_s": 1.0})
    return make_env(config, seed=seed)


def _made(env: VectorEnv, seed: int = 0, **changes: Any) -> AVG:
    return AVG(env, AVGConfig(**(SMALL | changes)), seed)


def test_features_have_length_one_whatever_the_size_of_the_input() -> None:
    torch.manual_seed(0)
    network = UnitFeatures(3, 2, (16, 8))
    for size in (1e-3, 1.0, 1e3):
        x = size * torch.randn(20, 3)
        features = network.features(x)
        assert features.shape == (20, 8)
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(20))
        torch.testing.assert_close(network(x), features @ network.head.weight.T + network.head.bias)


@pytest.mark.parametrize("worlds", [1, 3])
def test_the_spread_is_that_of_all_rewards_discounts_and_returns_so_far(worlds: int) -> None:
    rng = np.random.default_rng(0)
    steps, gamma = 60, 0.9
    reward = rng.normal(2.0, 3.0, (steps, worlds))
    terminated, truncated = rng.random((2, steps, worlds)) < 0.1
    truncated &= ~terminated
    spread = ReturnSpread(worlds, gamma)
    assert spread.sigma().item() == 1.0
    for t in range(steps):
        spread.update(torch.tensor(reward[t]), torch.tensor(terminated[t]), torch.tensor(terminated[t] | truncated[t]))
        returns, begun = [], np.zeros(worlds, int)
        for s in range(t + 1):
            for w in range(worlds):
                if terminated[s, w] or truncated[s, w]:
                    returns.append(reward[begun[w] : s + 1, w].sum())
                    begun[w] = s + 1
        discounts = np.where(terminated[: t + 1], 0.0, gamma)
        squares = np.mean(np.square(returns)) if returns else 0.0
        expected = np.sqrt(reward[: t + 1].var() + discounts.var() * squares)
        if (t + 1) * worlds > 1:
            assert spread.sigma().item() == pytest.approx(max(expected, 0.01), rel=1e-5)


def test_the_losses_are_those_of_the_paper() -> None:
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    reward, discount, following = torch.tensor([0.5, 1.0]), torch.tensor([0.9, 0.0]), torch.tensor([3.0, 100.0])
    loss = value_loss(value, reward, discount, following, torch.tensor(2.0))
    # Errors of 0.5 + 0.9 * 3 - 1 = 2.2 and 1 - 2 = -1, halved and squared.
    torch.testing.assert_close(loss, torch.tensor([1.21, 0.25]))
    loss.sum().backward()
    torch.testing.assert_close(value.grad, torch.tensor([-1.1, 0.5]))
    torch.testing.assert_close(policy_loss(torch.tensor([3.0]), torch.tensor([-2.0]), 0.1), torch.tensor([-3.2]))


def test_both_networks_learn_from_the_step_as_it_was_taken() -> None:
    env = _pendulum()
    algorithm = _made(env, alpha=0.3)
    algorithm.collect(env)
    before, twin = copy.deepcopy(algorithm), torch.Generator()
    before.optimizer.zero_grad()
    twin.set_state(algorithm.generator.get_state())
    obs, taken = {name: values.clone() for name, values in env.obs_buf.items()}, []
    step = env.step

    def recording(action: torch.Tensor) -> Any:
        taken.append((action, result := step(action)))
        return result

    env.step = recording  # type: ignore[method-assign]
    algorithm._step(env)
    ((action, (_, reward, terminated, _, extras)),) = taken
    for network, group in ((before.policy, "policy"), (before.value, "critic")):
        network.normalizer.update(obs[group])
    sample = before.policy.sample(obs["policy"], twin)
    assert torch.equal(action, before.policy.to_env(sample.action))
    then = before.policy.sample(extras["final_obs"]["policy"], twin)
    following = before.value(extras["final_obs"]["critic"], then.action) - 0.3 * then.log_prob
    target = (reward + 0.99 * (1 - terminated.float()) * following).detach()
    error = (target - before.value(obs["critic"], sample.action.detach())) / algorithm.spread.sigma()
    climbed = 0.3 * sample.log_prob - before.value(obs["critic"], sample.action)
    for module, loss in (("policy", climbed.sum()), ("value", error.square().sum())):
        expected = torch.autograd.grad(loss, list(getattr(before, module).parameters()), retain_graph=True)
        for parameter, gradient in zip(getattr(algorithm, module).parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    assert [group["betas"][0] for group in algorithm.optimizer.param_groups] == [0.0, 0.0]


def test_the_value_of_an_endless_constant_reward_is_that_of_no_truncation(
    constant_env: Callable[..., VectorEnv],
) -> None:
    env = constant_env(1)
    algorithm = _made(env, gamma=0.5, alpha=0.0, value_learning_rate=0.01, iteration_steps=800)
    algorithm.collect(env)
    with torch.no_grad():
        value = algorithm.value(env.obs_buf["critic"], torch.zeros(1, 1)).item()
    # Taken for terminations, the truncations after every ten steps would make it 1.8 on average.
    assert value == pytest.approx(2.0, rel=0.03)


def test_statistics_are_taken_once_from_each_frame() -> None:
    env = _pendulum(2)
    algorithm = _made(env)
    algorithm.collect(env)
    for normalizer in (algorithm.policy.normalizer, algorithm.value.normalizer, algorithm.spread.step_statistics):
        assert normalizer.count.item() == 60


def test_resuming_continues_bit_for_bit() -> None:
    env = _pendulum(2)
    whole = _made(env)
    expected = [whole.collect(env) | whole.update() for _ in range(4)]
    env = _pendulum(2)
    first = _made(env)
    logged = [first.collect(env) | first.update() for _ in range(2)]
    saved, worlds = copy.deepcopy(first.state_dict()), copy.deepcopy(env.state_dict())
    env = _pendulum(2, seed=5)
    second = _made(env, seed=5)
    second.load_state_dict(saved)
    env.load_state_dict(worlds)
    logged += [second.collect(env) | second.update() for _ in range(2)]
    assert logged == expected
    for part in ("policy", "value", "spread"):
        for key, value in whole.state_dict()[part].items():
            assert torch.equal(second.state_dict()[part][key], value)


def test_same_seed_same_parameters_other_seed_others() -> None:
    def trained(seed: int) -> torch.Tensor:
        env = _pendulum(seed=seed)
        algorithm = _made(env, seed)
        algorithm.collect(env)
        return algorithm.policy.network.head.weight.detach()

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


def _trained(folder: Path, config: TrainConfig) -> runs.Run:
    run = runs.create(folder, config.task, config.algo, config, config.seed, config.device)
    assert train(config, run).finished
    return run


def test_an_interrupted_training_goes_on_bit_for_bit_and_its_policy_is_exported(tmp_path: Path) -> None:
    config = default_config("Pendulum-Swingup", "avg", steps=120, threads=1, checkpoint_every=2, algorithm=SMALL)
    whole = _trained(tmp_path / "whole", config)
    half = _trained(tmp_path / "half", replace(config, steps=60))
    assert train(config, half, resume=True).steps == 120
    ours, theirs = (checkpoint.latest(run.checkpoints)[1]["algorithm"] for run in (half, whole))
    for part in ("policy", "value", "spread"):
        for key, value in theirs[part].items():
            assert torch.equal(ours[part][key], value)
    path = exporting.export(half.path, steps=200)
    observation = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    # Both are float32 through three layers.
    np.testing.assert_allclose(Policy(path).act(observation)[0], load(half.path).act(observation), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hidden": ()}, "hidden needs a layer"),
        ({"alpha": -0.1}, "alpha must not be negative"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1"),
        ({"policy_learning_rate": 0.0}, "policy_learning_rate must be positive"),
        ({"log_std_range": (2.0, -2.0)}, "log_std_range must rise"),
        ({"iteration_steps": 0}, "iteration_steps must be at least 1"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError, match=error):
        AVGConfig(**changes)


def test_networks_that_are_no_longer_finite_end_the_run() -> None:
    env = _pendulum()
    algorithm = _made(env)
    with torch.no_grad():
        algorithm.value.network.head.bias.fill_(torch.nan)
    with pytest.raises(UserError, match="action is not finite"):
        algorithm.collect(env)
