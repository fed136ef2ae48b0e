"""Advantages against sums written out term by term."""

import torch

from robolearn.algorithms.gae import gae


def _by_the_sum(reward, value, next_value, terminated, truncated, gamma, lam):
    """The definition, A_t = sum over l of (gamma lambda)^l delta_{t+l}, up to the end of the episode: O(T^2)."""
    steps, worlds = reward.shape
    advantage = torch.zeros_like(reward)
    for w in range(worlds):
        for t in range(steps):
            for k in range(t, steps):
                future = 0.0 if terminated[k, w] else gamma * next_value[k, w]
                advantage[t, w] += (gamma * lam) ** (k - t) * (reward[k, w] + future - value[k, w])
                if terminated[k, w] or truncated[k, w]:
                    break
    return advantage


def test_gae_equals_the_sum_of_discounted_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (17, 5)
    reward, value, next_value = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    terminated = torch.rand(shape, generator=generator) < 0.15
    truncated = (torch.rand(shape, generator=generator) < 0.15) & ~terminated
    arguments = (reward, value, next_value, terminated, truncated, 0.97, 0.9)
    torch.testing.assert_close(gae(*arguments), _by_the_sum(*arguments), rtol=1e-12, atol=1e-12)


def test_nothing_leaks_from_the_next_episode() -> None:
    reward, zero = torch.tensor([[1.0], [100.0]]), torch.zeros(2, 1)
    for terminated in (True, False):
        ends = torch.tensor([[True], [False]])
        none = torch.zeros(2, 1, dtype=torch.bool)
        flags = (ends, none) if terminated else (none, ends)
        assert gae(reward, zero, zero, *flags, 0.99, 0.95)[0] == 1.0


def test_a_truncated_step_is_worth_its_last_observation_and_a_terminated_one_is_not() -> None:
    reward, value, last = torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), 10.0)
    yes, no = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool)
    assert gae(reward, value, last, no, yes, 0.9, 0.95).item() == 0.9 * torch.tensor(10.0).item()
    assert gae(reward, value, last, yes, no, 0.9, 0.95).item() == 0.0
