"""Policies and their statistics against closed forms."""

import pytest
import torch
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl

from robolearn.policies.gaussian import GaussianPolicy, entropy, kl_divergence, log_prob
from robolearn.policies.normalizer import Normalizer, ReturnScaler


def _policy() -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(3, torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]), hidden=(16,), initial_std=0.5)


def test_density_entropy_and_divergence_equal_torchs() -> None:
    torch.manual_seed(1)
    mean, other, u = torch.randn(3, 7, 4, dtype=torch.float64)
    log_std, other_log_std = torch.randn(2, 4, dtype=torch.float64)
    p = Independent(Normal(mean, log_std.exp()), 1)
    q = Independent(Normal(other, other_log_std.exp()), 1)
    torch.testing.assert_close(log_prob(u, mean, log_std), p.log_prob(u))
    torch.testing.assert_close(entropy(log_std).expand(7), p.entropy())
    torch.testing.assert_close(kl_divergence(mean, log_std, other, other_log_std), torch_kl(p, q))


def test_the_mean_action_starts_at_the_middle_of_the_range_and_one_unit_is_the_initial_spread() -> None:
    policy = _policy()
    torch.testing.assert_close(policy.centre, torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(policy.scale, torch.tensor([0.5, 1.0]))
    actions = policy.act(torch.zeros(20_000, 3), generator=torch.Generator().manual_seed(0))
    # Four standard errors of a standard deviation from 20,000 draws are 2 %.
    torch.testing.assert_close(actions.std(0), policy.scale, rtol=0.02, atol=0.0)


def test_the_deterministic_act_is_what_is_exported() -> None:
    policy, observation = _policy(), torch.randn(5, 3)
    torch.testing.assert_close(policy.act(observation, deterministic=True), policy(observation), rtol=0, atol=0)


def test_running_moments_equal_those_of_all_rows() -> None:
    torch.manual_seed(0)
    rows = torch.randn(1000, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 100.0, -3.0])
    normalizer = Normalizer(3)
    for part in rows.split([1, 9, 490, 500]):
        normalizer.update(part)
    torch.testing.assert_close(normalizer.mean, rows.double().mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(normalizer.var, rows.double().var(0, correction=0), rtol=1e-10, atol=1e-12)
    assert normalizer.count.item() == 1000
    # float32 holds rows near 100 to 4e-6, which the smallest spread of 0.1 makes 4e-5.
    torch.testing.assert_close(normalizer(rows).mean(0), torch.zeros(3), rtol=0, atol=1e-4)


def test_a_normalizer_changes_only_when_told_to_and_travels_with_its_policy() -> None:
    policy = _policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    policy(torch.randn(10, 3))
    for name, value in policy.state_dict().items():
        assert torch.equal(value, before[name])
    policy.normalizer.update(torch.randn(10, 3) + 5)
    again = _policy()
    again.load_state_dict(policy.state_dict())
    observation = torch.randn(4, 3)
    assert torch.equal(again(observation), policy(observation))


def test_return_scaling_starts_anew_with_each_episode() -> None:
    scaler = ReturnScaler(1, gamma=0.5)
    reward = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    done = torch.tensor([[False], [True], [False], [False]])
    scaled = scaler(reward, done)
    returns = torch.tensor([1.0, 1.5, 1.0, 1.5])
    assert scaler.ret.item() == 1.5
    torch.testing.assert_close(scaler.statistics.mean.item(), returns.mean().item())
    expected = 1 / (returns.var(correction=0) + scaler.statistics.epsilon).sqrt()
    torch.testing.assert_close(scaled, reward * expected)


def test_extremes_are_clipped_after_normalising() -> None:
    normalizer = Normalizer(1, limit=5.0)
    normalizer.update(torch.randn(100, 1))
    assert normalizer(torch.tensor([[1e9]])).item() == pytest.approx(5.0)
