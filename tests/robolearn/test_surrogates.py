"""Surrogates against the table of their gradients and the claims of their papers."""

from typing import Any

import pytest
import torch

from benchmarks import surrogates as benchmark
from robolearn.algorithms.bounded_ratio import BPO
from robolearn.algorithms.penalties import KL, MDPO, R2VPO
from robolearn.algorithms.ppo import PPO, PPOConfig
from robolearn.algorithms.surrogate import Sample, Surrogate
from robolearn.algorithms.surrogates import SURROGATES, clip
from robolearn.constraint import Dual
from robolearn.policies.gaussian import kl_divergence, log_prob
from robolearn.training import default_config, make_env
from sim.errors import UserError

OBSERVATIONS = 2


def _sample(mean: torch.Tensor, u: torch.Tensor, advantage: torch.Tensor) -> Sample:
    """Return steps whose old policy is a standard normal; the value is 0, so the return is the advantage."""
    old, log_std = torch.zeros_like(mean), torch.zeros(mean.shape[1], dtype=mean.dtype)
    ratio = (log_prob(u, mean, log_std) - log_prob(u, old, log_std)).exp()
    zero = torch.zeros(len(mean), dtype=mean.dtype)
    seen = torch.ones(len(mean), OBSERVATIONS, dtype=mean.dtype)
    return Sample(ratio, advantage, mean, log_std, old, log_std, seen, zero, advantage)


def _of_ratio(ratio: float, advantage: float) -> tuple[Sample, torch.Tensor]:
    """Return a step of a given ratio, and the ratio that gradients flow to."""
    r = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([advantage], dtype=torch.float64)
    nothing, seen = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, OBSERVATIONS, dtype=torch.float64)
    return Sample(r, a, nothing, nothing[0], nothing, nothing[0], seen, nothing[0], a), r


def _surrogate(name: str, **options: Any) -> Surrogate:
    surrogate = SURROGATES[name](PPOConfig(surrogate=name, hidden=(), **options), OBSERVATIONS).double()
    if isinstance(surrogate, BPO):  # a head that agrees with the value, which is 0
        for p in surrogate.head.parameters():
            torch.nn.init.zeros_(p)
    if isinstance(surrogate, R2VPO):
        surrogate.dual.value.fill_(2.0)
    return surrogate


def _gradient(name: str, ratio: float, advantage: float) -> float:
    """Return d objective / d ratio."""
    sample, r = _of_ratio(ratio, advantage)
    _surrogate(name)(sample).sum().backward()
    assert r.grad is not None
    return -r.grad.item()


RATIOS = (0.6, 0.79, 0.81, 0.9, 1.0, 1.1, 1.19, 1.21, 1.4)
TABLE = {
    # of r A - |A| (r - 1)^2 / 0.4 and so on; epsilon 0.2, R2VPO's price 2
    ("clip", 1.0): (1, 1, 1, 1, 1, 1, 1, 0, 0),
    ("clip", -1.0): (0, 0, -1, -1, -1, -1, -1, -1, -1),
    ("spo", 1.0): (3, 2.05, 1.95, 1.5, 1, 0.5, 0.05, -0.05, -1),
    ("spo", -1.0): (1, 0.05, -0.05, -0.5, -1, -1.5, -1.95, -2.05, -3),
    ("bpo", 1.0): (1, 1, 1, 1, 1, 1, 1, -1, -1),
    ("bpo", -1.0): (1, 1, -1, -1, -1, -1, -1, -1, -1),
    ("r2vpo", 1.0): (2.6, 1.84, 1.76, 1.4, 1, 0.6, 0.24, 0.16, -0.6),
    ("r2vpo", -1.0): (0.6, -0.16, -0.24, -0.6, -1, -1.4, -1.76, -1.84, -2.6),
    # Of the ratio itself; their distances are of the distribution and are tested below.
    ("mdpo", 1.0): (1,) * 9,
    ("kl", -1.0): (-1,) * 9,
}


@pytest.mark.parametrize(("name", "advantage"), TABLE)
def test_gradients_are_those_of_the_table(name: str, advantage: float) -> None:
    measured = [_gradient(name, ratio, advantage) for ratio in RATIOS]
    # float64 but for epsilon's rounding and bpo's returns, whose statistics begin as those of a float32.
    assert measured == pytest.approx(TABLE[name, advantage], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_every_surrogate_starts_with_the_policy_gradient(name: str, advantage: float) -> None:
    assert _gradient(name, 1.0, advantage) == pytest.approx(advantage, rel=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
def test_the_gradient_in_the_policy_is_the_policy_gradient_where_the_policies_are_one(name: str) -> None:
    torch.manual_seed(0)
    mean = torch.zeros(64, 3, dtype=torch.float64, requires_grad=True)
    u, advantage = torch.randn(64, 3).double(), torch.randn(64).double()
    _surrogate(name)(_sample(mean, u, advantage)).sum().backward()
    torch.testing.assert_close(mean.grad, -advantage[:, None] * u)  # d log N(u; mean, 1) / d mean = u - mean


def test_clip_equals_its_formula() -> None:
    ratio, advantage = torch.tensor([0.5, 1.5, 0.5, 1.5]), torch.tensor([2.0, 2.0, -2.0, -2.0])
    torch.testing.assert_close(clip(ratio, advantage, 0.2), -torch.tensor([1.0, 2.4, -1.6, -3.0]))


@pytest.mark.parametrize("advantage", [1.5, -0.3])
def test_dropout_is_clip_without_the_steps_far_from_ratio_one(advantage: float) -> None:
    for ratio in (0.61, 0.79, 0.81, 1.0, 1.19, 1.21, 1.39):
        assert _gradient("dropout", ratio, advantage) == _gradient("clip", ratio, advantage)
    for ratio in (0.1, 0.59, 1.41, 3.0):
        assert _gradient("dropout", ratio, advantage) == 0.0


@pytest.mark.parametrize("advantage", [1.5, -0.3])
def test_spo_is_best_at_the_edge_of_the_trust_region(advantage: float) -> None:
    assert _gradient("spo", 1 + (0.2 if advantage > 0 else -0.2), advantage) == pytest.approx(0.0, abs=1e-12)


def test_the_head_of_bpo_finds_the_smooth_median() -> None:
    returns = torch.randn(4096, generator=torch.Generator().manual_seed(0)).double().exp()  # skewed: mean is no median
    surrogate = _surrogate("bpo", value_coefficient=1.0)
    assert isinstance(surrogate, BPO)
    zero = torch.zeros(4096, 1, dtype=torch.float64)
    seen = torch.ones(4096, OBSERVATIONS, dtype=torch.float64)
    sample = Sample(zero[:, 0] + 1, returns, zero, zero[0], zero, zero[0], seen, returns, returns)
    optimizer = torch.optim.LBFGS(surrogate.head.parameters(), max_iter=50)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = surrogate(sample).mean()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.sigmoid(returns - surrogate.head(seen)).mean().item() == pytest.approx(0.5, abs=1e-4)


def test_bpo_does_not_see_the_unit_of_the_return() -> None:
    losses = []
    for unit in (1.0, 1000.0):
        env = make_env(default_config("CartPole-Balance", num_envs=8))
        algorithm = PPO(env, PPOConfig(surrogate="bpo", horizon=16, hidden=(8,)))
        algorithm.rollout.target = unit * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
        algorithm.surrogate.begin(algorithm, 0.0)
        one = torch.ones(128, 1)
        seen, target = torch.zeros(128, algorithm.critic_size), algorithm.rollout.target.flatten()
        sample = Sample(1.1 * one[:, 0], target, one, one[0], one, one[0], seen, 0 * target, target)
        losses.append(algorithm.surrogate(sample).mean().item())
    # The variance's epsilon of 1e-4 is 1e-4 of a variance of 1.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_mdpo_pays_the_divergence_from_the_old_policy_at_a_rising_price() -> None:
    surrogate = _surrogate("mdpo")
    assert isinstance(surrogate, MDPO)
    env = make_env(default_config("CartPole-Balance", num_envs=2))
    algorithm = PPO(env, PPOConfig(horizon=2, hidden=()))
    mean = torch.full((4, 2), 0.3, dtype=torch.float64)
    sample = _sample(mean, torch.zeros_like(mean), torch.zeros(4, dtype=torch.float64))
    kl = kl_divergence(mean, sample.log_std, sample.old_mean, sample.old_log_std)
    for progress, price in [(0.0, 1.0), (0.5, 2.0), (0.9, 10.0)]:
        surrogate.begin(algorithm, progress)
        torch.testing.assert_close(surrogate(sample), price * kl)


def test_the_price_of_r2vpo_follows_the_variance_of_the_ratio() -> None:
    surrogate = _surrogate("r2vpo", dual_rate=0.5)
    assert isinstance(surrogate, R2VPO)
    for ratio, price in [(1.4, 2.0 + 0.5 * (0.16 - 0.04)), (1.0, 2.06 - 0.5 * 0.04)]:
        surrogate(_of_ratio(ratio, 1.0)[0])
        assert surrogate.dual.value.item() == pytest.approx(price)
    for _ in range(200):
        surrogate(_of_ratio(1.0, 1.0)[0])
    assert surrogate.dual.value.item() == 0.0


def test_a_dual_variable_finds_the_price_of_its_constraint() -> None:
    # max x - x^2 / 2 subject to x <= 1/2: the multiplier is 1/2 (stationarity: 1 - x - price = 0).
    dual = Dual(0.0, rate=0.1)
    for _ in range(300):
        dual.update((1 - dual.value) - 0.5)
    assert dual.value.item() == pytest.approx(0.5, abs=1e-5)
    dual.update(torch.tensor(float("nan")))
    assert dual.value.item() == pytest.approx(0.5, abs=1e-5)


def _largest_kl(algorithm: PPO) -> float:
    """Return the largest KL divergence from the policy that collected, over the whole rollout."""
    r = algorithm.rollout
    with torch.no_grad():
        return float(kl_divergence(r.mean, algorithm.log_std, *algorithm.policy.distribution(r.policy_obs)).max())


@pytest.mark.parametrize("sweeps", [10, 0])
def test_no_step_of_fixpo_ends_above_its_limit(sweeps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KL, "sweeps", sweeps)  # without steps on the divergence, halving has to do it
    env = make_env(default_config("CartPole-Swingup", num_envs=8))
    config = PPOConfig(surrogate="kl", kl_limit=0.02, learning_rate=0.01, target_kl=0.0, horizon=32, hidden=(32,))
    algorithm = PPO(env, config)
    worked = 0.0
    monkeypatch.setattr(algorithm, "_conclude", dict)  # the statistics stay those of the rollout
    for _ in range(4):
        algorithm.collect(env)
        metrics = algorithm.update()
        assert _largest_kl(algorithm) <= config.kl_limit
        worked += metrics["surrogate/fix_up_halvings" if sweeps == 0 else "surrogate/fix_up_steps"]
    assert worked > 0


def test_the_state_of_a_surrogate_is_in_the_checkpoint() -> None:
    env = make_env(default_config("CartPole-Balance", num_envs=2))
    for name, keys in {"clip": 0, "r2vpo": 1, "kl": 1, "bpo": 5 + 4 + 5}.items():
        algorithm = PPO(env, PPOConfig(surrogate=name, horizon=2, hidden=(8,)))
        assert len(algorithm.state_dict()["surrogate"]) == keys


def test_an_unknown_surrogate_is_named() -> None:
    with pytest.raises(UserError, match="spo"):
        PPOConfig(surrogate="sop")


def test_the_benchmark_pairs_its_seeds_and_states_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {("clip", 0): 1.0, ("clip", 1): 3.0, ("spo", 0): 2.0, ("spo", 1): 4.0}
    monkeypatch.setattr(benchmark, "SURROGATES", ("clip", "spo"))
    monkeypatch.setattr(benchmark, "measure", lambda t, name, seed, *_: benchmark.Result(scores[name, seed], 0, 0, 0))
    (_, alone, none, *_), (name, _, paired, *_) = benchmark.rows("CartPole-Swingup", 1, seeds=2)
    # Two values 2 apart: a standard error of 1 and Student's 12.706; each of spo's is 1 above its pair.
    assert (alone, none) == ("2 ± 13", "+0 ± 0")
    assert (name, paired) == ("spo", "+1 ± 0")


def test_the_benchmark_measures_how_far_an_update_goes() -> None:
    result = benchmark.measure("CartPole-Swingup", "spo", seed=0, steps=2 * 64 * 64, episodes=2)
    assert 0 < result.score < 600
    assert 0 < result.ratio <= result.worst_ratio < 1
    assert 0 < result.kl < 0.1
