"""Squashed policies against closed forms and torch's own distributions."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

from robolearn.policies.squashed import (
    DeterministicPolicy,
    MixturePolicy,
    Sample,
    SquashedPolicy,
    TanhGaussianPolicy,
    tanh_log_prob,
    tanh_log_slope,
)

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
HEADS = (DeterministicPolicy, TanhGaussianPolicy, MixturePolicy)


def _policy(head: type[SquashedPolicy], **options: object) -> SquashedPolicy:
    torch.manual_seed(0)
    return head(3, LOW, HIGH, hidden=(16,), **options)  # type: ignore[arg-type]


def test_the_slope_of_the_tanh_is_exact_where_it_has_saturated() -> None:
    u = torch.tensor([0.0, 1.0, -6.0, 8.0, 15.0, -40.0], requires_grad=True)
    exact = torch.log1p(-(torch.tanh(u.double()) ** 2))
    big = u.detach().abs() > 10  # 1 - tanh^2 is 4 exp(-2|u|), which double holds no longer either
    exact = torch.where(big, math.log(4) - 2 * u.double().abs(), exact)
    torch.testing.assert_close(tanh_log_slope(u).double(), exact, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(tanh_log_slope(u).sum(), u)
    torch.testing.assert_close(gradient, -2 * torch.tanh(u.detach()), rtol=1e-5, atol=1e-6)


def test_the_density_is_that_of_torchs_transformed_distribution() -> None:
    torch.manual_seed(1)
    mean, u = torch.randn(2, 50, 2, dtype=torch.float64)
    log_std = torch.randn(50, 2, dtype=torch.float64) * 0.5
    half, centre = ((HIGH - LOW) / 2).double(), ((HIGH + LOW) / 2).double()
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    scaled = TransformedDistribution(squashed, [AffineTransform(centre, half)])
    ours = tanh_log_prob(u, mean, log_std)
    torch.testing.assert_close(ours, squashed.log_prob(torch.tanh(u)).sum(-1), rtol=1e-8, atol=1e-8)
    in_units = scaled.log_prob(centre + half * torch.tanh(u)).sum(-1)
    torch.testing.assert_close(ours - half.log().sum(), in_units, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head", [TanhGaussianPolicy, MixturePolicy])
def test_the_density_of_one_action_integrates_to_one(head: type[SquashedPolicy]) -> None:
    torch.manual_seed(0)
    policy = head(3, LOW[:1], HIGH[:1], hidden=(16,)).double()
    output = policy.network(torch.randn(1, 3, dtype=torch.float64))[0]
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64)[:, None]
    density = policy.log_prob(output.expand(len(u), -1), u).exp()
    total = torch.trapezoid(density, torch.tanh(u[:, 0]))
    assert total.item() == pytest.approx(1.0, abs=1e-4)


def test_the_one_node_sample_has_the_value_and_gradient_of_the_plain_one() -> None:
    policy = _policy(TanhGaussianPolicy, log_std_range=(-1.0, 0.5))
    output = (2 * torch.randn(64, 4)).requires_grad_()
    sample = policy.sample(output, torch.Generator().manual_seed(3))
    noise = torch.randn(64, 2, generator=torch.Generator().manual_seed(3))
    mean, log_std = output.chunk(2, -1)
    distribution = Independent(Normal(mean, log_std.clamp(-1.0, 0.5).exp()), 1)
    u = distribution.mean + distribution.stddev * noise
    log_prob = distribution.log_prob(u) - tanh_log_slope(u).sum(-1)
    for ours, plain in ((sample.action, torch.tanh(u)), (sample.u, u), (sample.log_prob, log_prob)):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    weight = torch.randn(64, 2)
    loss = lambda a, u, p: (weight * a).sum() + (u**2).sum() + (p * torch.arange(64)).sum()  # noqa: E731
    (ours,) = torch.autograd.grad(loss(sample.action, sample.u, sample.log_prob), output)
    (plain,) = torch.autograd.grad(loss(torch.tanh(u), u, log_prob), output)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("normalize", [False, True])
def test_actions_keep_to_their_bounds_and_the_exported_one_is_the_deterministic_act(
    head: type[SquashedPolicy], normalize: bool
) -> None:
    policy = _policy(head, normalize=normalize)
    observation = 5 * torch.randn(200, 3)
    if policy.normalizer is not None:
        policy.normalizer.update(observation)
    action = policy.act(observation, generator=torch.Generator().manual_seed(0))
    assert bool(((action >= LOW) & (action <= HIGH)).all())
    assert torch.equal(policy.act(observation, deterministic=True), policy(observation))
    torch.testing.assert_close(policy.output(observation), policy.network(policy.normalized(observation))[0])
    assert not torch.equal(action, policy(observation))


def test_exploration_is_spread_over_the_worlds() -> None:
    policy = _policy(DeterministicPolicy, exploration_noise=(0.0, 0.2))
    observation = torch.zeros(3, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([policy.explore(observation, generator) for _ in range(4000)])
    # Four standard errors of a standard deviation from 8,000 draws are 3 %.
    torch.testing.assert_close(drawn.std(0).mean(1), torch.tensor([0.0, 0.1, 0.2]), rtol=0.04, atol=1e-6)


def test_smoothing_noise_is_clipped_and_so_is_the_action() -> None:
    policy = _policy(DeterministicPolicy, target_noise=0.2, target_noise_clip=0.5)
    output = torch.tensor([0.3, 3.0]).expand(20_000, 2)
    action = policy.target(output, torch.Generator().manual_seed(0)).action
    noise = action - torch.tanh(output)
    assert noise.abs().max() <= 0.5 + 1e-6
    assert action.max() == 1.0
    # Of N(0, 0.2) clipped at 2.5 standard deviations, the standard deviation is 0.1973.
    assert noise[:, 0].std().item() == pytest.approx(0.1973, rel=0.02)
    torch.testing.assert_close(policy.sample(output, None).action, torch.tanh(output))


def test_a_mixture_is_drawn_from_by_its_weights_and_stands_for_its_likeliest_expert() -> None:
    policy = MixturePolicy(3, LOW, HIGH, experts=3, hidden=(16,))
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    mean = torch.tensor([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
    output = torch.cat((logits, mean.flatten(), torch.full((6,), -7.0)))[None].expand(30_000, -1)
    torch.testing.assert_close(torch.tanh(policy.mode(output[:1])), torch.tanh(mean[1:2]))
    u = policy.sample(output, torch.Generator().manual_seed(0)).u
    share = torch.stack([((u - m).abs().amax(1) < 0.05).float().mean() for m in mean])
    # Standard errors of a share are below 0.003.
    torch.testing.assert_close(share, torch.tensor([0.2, 0.5, 0.3]), rtol=0, atol=0.012)


def test_a_mixture_learns_at_the_best_proposal_and_weighs_its_expert() -> None:
    policy = MixturePolicy(3, LOW, HIGH, experts=3, hidden=(16,))
    mean = torch.tensor([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
    flat = torch.cat((torch.zeros(3), mean.flatten(), torch.full((6,), -7.0)))
    output = flat.expand(8, -1).clone().requires_grad_()

    def objective(sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        value = sample.action.sum(-1)
        return -value, value

    loss, sample = policy.improve(output, objective, torch.Generator().manual_seed(0))
    torch.testing.assert_close(sample.action, torch.tanh(mean[2]).expand(8, 2), rtol=0, atol=0.01)
    gating = ((1 / 3) ** 2 * 2 + (2 / 3) ** 2) / 3
    assert loss.item() == pytest.approx(-2 * math.tanh(1.0) + gating, abs=0.01)
    (gradient,) = torch.autograd.grad(loss, output)
    assert bool((gradient[:, 2] < 0).all())
    assert bool((gradient[:, :2] > 0).all())
    assert torch.equal(gradient[:, 3:7], torch.zeros(8, 4))
    assert bool((gradient[:, 7:9] < 0).all())


def test_a_mixtures_weights_do_not_learn_through_the_density() -> None:
    policy = MixturePolicy(3, LOW, HIGH, experts=3, hidden=(16,))
    output = torch.randn(8, 15, requires_grad=True)
    gradients = []
    for weight in (0.0, 5.0):
        loss, _ = policy.improve(
            output,
            lambda sample, w=weight: (w * sample.log_prob, sample.action[:, 0]),
            torch.Generator().manual_seed(0),
        )
        gradients.append(torch.autograd.grad(loss, output)[0])
    torch.testing.assert_close(gradients[0][:, :3], gradients[1][:, :3])
    assert not torch.allclose(gradients[0][:, 3:], gradients[1][:, 3:])
