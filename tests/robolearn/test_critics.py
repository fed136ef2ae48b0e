"""What critics predict, against hand-made distributions."""

import math

import pytest
import torch

from robolearn.algorithms.critics import CategoricalCritic, GaussianCritic, ScalarCritic, project


def test_a_scalar_target_is_the_least_value_with_the_bonus_inside_the_discount() -> None:
    output = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]], requires_grad=True)
    following = torch.tensor([[[10.0], [20.0]], [[11.0], [7.0]]])
    reward, discount, bonus = torch.tensor([0.5, -1.0]), torch.tensor([0.9, 0.0]), torch.tensor([2.0, 3.0])
    loss = ScalarCritic().loss(output, following, reward, discount, bonus, None)
    y = (0.5 + 0.9 * 12.0, -1.0)
    expected = ((1 - y[0]) ** 2 + (2 - y[1]) ** 2 + (3 - y[0]) ** 2 + (4 - y[1]) ** 2) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_projection_keeps_mass_and_mean_inside_the_support() -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(-10, 10, 51)
    probabilities = torch.randn(300, 51).softmax(-1)
    values = 0.6 * atoms + 3.0 * torch.rand(300, 1)
    out = project(probabilities, values, atoms)
    assert bool((out >= 0).all())
    torch.testing.assert_close(out.sum(-1), torch.ones(300), rtol=0, atol=1e-5)
    torch.testing.assert_close(out @ atoms, (probabilities * values).sum(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shift", [-20, -3, 0, 1, 7, 20])
def test_values_that_fall_on_atoms_keep_their_whole_mass(shift: int) -> None:
    atoms = torch.arange(11.0)
    probabilities = torch.full((1, 11), 1 / 11)
    out = project(probabilities, (atoms + shift)[None], atoms)
    expected = torch.zeros(11)
    for i in range(11):
        expected[min(max(i + shift, 0), 10)] += 1 / 11
    torch.testing.assert_close(out[0], expected, rtol=1e-6, atol=1e-6)


def test_a_categorical_target_is_the_distribution_of_the_lower_mean_moved() -> None:
    critic = CategoricalCritic(0.0, 10.0, 11)
    sure = torch.full((2, 1, 11), -100.0)
    sure[0, 0, 6], sure[1, 0, 4] = 100.0, 100.0
    torch.testing.assert_close(critic.mean(sure), torch.tensor([[6.0], [4.0]]))
    output = torch.randn(2, 1, 11)
    loss = critic.loss(output, sure, torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([1.0]), None)
    # 1 + 0.5 * (4 + 1) = 3.5, half way between two atoms.
    log = output.log_softmax(-1)
    expected = -(log[:, 0, 3] + log[:, 0, 4]).sum() / 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_gaussian_critic_learns_mean_and_deviation_of_a_known_reward() -> None:
    torch.manual_seed(0)
    mean, std = 3.0, 2.0
    critic = GaussianCritic(2)
    output = torch.nn.Parameter(torch.zeros(2, 1, 2))
    optimizer = torch.optim.Adam([output], lr=0.02)
    generator = torch.Generator().manual_seed(0)
    none = torch.zeros(256)
    seen = []
    for step in range(1500):
        reward = mean + std * torch.randn(256, generator=generator)
        now = output.expand(2, 256, 2)
        loss = critic.loss(now, torch.zeros(2, 256, 2), reward, none, none, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 1000:
            seen.append(torch.stack((critic.mean(output.detach()), critic.std(output.detach()))).squeeze(-1))
    learned = torch.stack(seen).mean(0)
    torch.testing.assert_close(learned[0], torch.full((2,), mean), rtol=0.03, atol=0)
    # Cut off at three deviations, a normal distribution has 0.986 of its own.
    torch.testing.assert_close(learned[1], torch.full((2,), std * 0.986), rtol=0.03, atol=0)


def test_a_gaussian_critic_samples_the_network_of_the_lower_mean() -> None:
    critic = GaussianCritic(2, rate=1.0)
    inverse = math.log(math.expm1(1e-4))
    following = torch.tensor([[[5.0, 3.0]], [[2.0, inverse]]]).expand(2, 64, 2)
    output = torch.tensor([[[1.0, 3.0]], [[1.0, 3.0]]]).expand(2, 64, 2)
    one, none = torch.ones(64), torch.zeros(64)
    std = torch.nn.functional.softplus(torch.tensor(3.0))
    loss = critic.loss(output, following, none, one, none, torch.Generator().manual_seed(0))
    # The target is 2 almost surely, a distance of 1: 0.5 for the mean; the variance follows 1.
    weight = std**2 / (std**2 + 0.1)
    expected = 2 * weight * (0.5 + std * (std**2 - 1.0) / (std + 0.1))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
