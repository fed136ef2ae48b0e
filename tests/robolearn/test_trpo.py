"""TRPO against closed forms and its own promises."""

import copy
from typing import Any

import pytest
import torch

from robolearn.algorithms.conjugate_gradient import conjugate_gradient, hessian_product
from robolearn.algorithms.trpo import TRPO, TRPOConfig
from robolearn.policies.gaussian import kl_divergence
from robolearn.training import default_config, make_env
from sim.errors import UserError
from tasks.vector_env import VectorEnv


def _made(num_envs: int = 16, seed: int = 0, **options: Any) -> tuple[VectorEnv, TRPO]:
    config = default_config("CartPole-Swingup", "trpo", num_envs=num_envs, seed=seed, threads=1)
    env = make_env(config)
    return env, TRPO(env, TRPOConfig(**{"horizon": 32, "hidden": (32,)} | options), seed)


def _parameters(algorithm: TRPO) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.policy.parameters()])


def _linear_gaussian() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return observations (N, D) and std (A,), and the Fisher matrix of a linear mean's weights and bias.

    Of a mean W s + b and fixed standard deviations, F = diag(1 / std^2) (x) E[(s, 1) (s, 1)^T].
    """
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(200, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2])
    std = torch.tensor([0.5, 2.0], dtype=torch.float64)
    weights = torch.kron(torch.diag(std**-2), s.T @ s / len(s))
    row = torch.kron(torch.diag(std**-2), s.mean(0)[:, None])
    matrix = torch.cat((torch.cat((weights, row), 1), torch.cat((row.T, torch.diag(std**-2)), 1)))
    return s, std, matrix, torch.randn(8, generator=generator, dtype=torch.float64)


def test_the_fisher_product_and_its_solve_are_those_of_the_closed_form() -> None:
    s, std, matrix, vector = _linear_gaussian()
    weight = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    mean = s @ weight.T + bias
    kl = kl_divergence(mean.detach(), std.log(), mean, std.log()).mean()
    product = hessian_product(kl, [weight, bias], damping=0.1)
    damped = matrix + 0.1 * torch.eye(8, dtype=torch.float64)
    torch.testing.assert_close(product(vector), damped @ vector, rtol=1e-10, atol=1e-10)
    # In exact arithmetic as many iterations as unknowns; rounding costs a few more.
    solved = conjugate_gradient(product, vector, iterations=20, tolerance=1e-26)
    torch.testing.assert_close(solved, torch.linalg.solve(damped, vector), rtol=1e-8, atol=1e-8)


def test_the_fisher_product_of_the_policy_is_the_mean_outer_product_of_scores() -> None:
    """The Hessian of the KL divergence is the covariance of the score, here of a policy with a network and its std."""
    env, algorithm = _made(4, horizon=2, hidden=(4,))
    algorithm.collect(env)
    policy = algorithm.policy.double()
    observation = algorithm.rollout.policy_obs.flatten(0, 1).double()
    mean, log_std = policy.distribution(observation)
    parameters = list(policy.parameters())
    kl = kl_divergence(mean.detach(), log_std.detach(), mean, log_std).mean()
    product = hessian_product(kl, parameters)
    count = sum(p.numel() for p in parameters)
    hessian = torch.stack([product(row) for row in torch.eye(count, dtype=torch.float64)])

    def derivatives(values: torch.Tensor) -> torch.Tensor:
        rows = []
        for value in values.flatten():
            parts = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([part.flatten() for part in parts]))
        return torch.stack(rows)

    d_mean, d_log_std = derivatives(mean), derivatives(log_std)
    # Of a normal: 1 / std^2 for the mean, 2 for the log standard deviation.
    fisher = d_mean.T @ d_mean / len(observation) * log_std.exp().item() ** -2 + 2 * d_log_std.T @ d_log_std
    torch.testing.assert_close(hessian, fisher, rtol=1e-8, atol=1e-10)


def test_no_step_exceeds_the_divergence_and_each_improves_the_objective() -> None:
    env, algorithm = _made(max_kl=0.01)
    for _ in range(5):
        algorithm.collect(env)
        algorithm._estimate()
        before = float(algorithm._objective_and_kl()[0].detach())
        metrics = algorithm._policy_step()
        after, kl = (float(v.detach()) for v in algorithm._objective_and_kl())
        assert metrics["policy/step_size"] > 0
        assert after > before
        assert 0.002 < kl <= 0.01  # the first try aims at 0.01 and a backtrack costs a factor of 0.64
        algorithm._fit_critic()
        algorithm._conclude()


def test_a_failed_search_restores_the_policy_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    env, algorithm = _made()
    algorithm.collect(env)
    algorithm.update()
    algorithm.collect(env)
    algorithm._estimate()
    before = copy.deepcopy(algorithm.policy.state_dict())
    real, calls = algorithm._objective_and_kl, []

    def worse() -> tuple[torch.Tensor, torch.Tensor]:
        objective, kl = real()
        calls.append(_parameters(algorithm))
        return objective - len(calls), kl

    monkeypatch.setattr(algorithm, "_objective_and_kl", worse)
    metrics = algorithm._policy_step()
    assert metrics["policy/step_size"] == 0.0
    assert len(calls) == 1 + algorithm.config.backtracks
    assert not torch.equal(calls[1], calls[0])
    for name, value in algorithm.policy.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_divergence_that_is_never_small_enough_restores_the_policy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    env, algorithm = _made()
    algorithm.collect(env)
    algorithm._estimate()
    before, real = _parameters(algorithm), algorithm._objective_and_kl
    monkeypatch.setattr(algorithm, "_objective_and_kl", lambda: (real()[0], real()[1] + 1.0))
    algorithm._policy_step()
    assert torch.equal(_parameters(algorithm), before)


def test_a_non_finite_rollout_changes_nothing_and_a_hundred_in_a_row_end_the_run() -> None:
    env, algorithm = _made(epochs=1, minibatches=1)
    algorithm.collect(env)
    algorithm.rollout.reward[0, 0] = torch.nan
    before = _parameters(algorithm)
    algorithm.update()
    assert algorithm.skipped == 2  # the policy's gradient and the critic's
    assert torch.equal(_parameters(algorithm), before)
    algorithm.skipped = 99
    with pytest.raises(UserError, match="100 gradients in a row"):
        algorithm.update()


def test_resuming_continues_bit_for_bit() -> None:
    env, whole = _made(normalize_reward=True)
    expected = [whole.collect(env) | whole.update() for _ in range(4)]
    env, first = _made(normalize_reward=True)
    logged = [first.collect(env) | first.update() for _ in range(2)]
    saved, worlds = copy.deepcopy(first.state_dict()), copy.deepcopy(env.state_dict())
    env, second = _made(seed=5, normalize_reward=True)
    second.load_state_dict(saved)
    env.load_state_dict(worlds)
    assert logged + [second.collect(env) | second.update() for _ in range(2)] == expected
    assert torch.equal(_parameters(whole), _parameters(second))


@pytest.mark.parametrize(("field", "value"), [("max_kl", 0.0), ("cg_iterations", 0), ("damping", -1.0), ("gamma", 2.0)])
def test_a_value_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        TRPOConfig(**{field: value})
