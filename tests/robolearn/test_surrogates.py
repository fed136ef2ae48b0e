"""Surrogates against the table of their gradients."""

import pytest
import torch

from robolearn.algorithms.surrogates import SURROGATES, clip


def _gradient(name: str, ratio: float, advantage: float) -> float:
    r = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    SURROGATES[name](r, torch.tensor([advantage], dtype=torch.float64), 0.2).sum().backward()
    assert r.grad is not None
    return -r.grad.item()


@pytest.mark.parametrize(
    ("advantage", "gradients"),
    [
        (1.0, {0.6: 1, 0.79: 1, 0.9: 1, 1.0: 1, 1.1: 1, 1.21: 0, 1.4: 0}),
        (-1.0, {0.6: 0, 0.79: 0, 0.81: -1, 0.9: -1, 1.0: -1, 1.1: -1, 1.4: -1}),
    ],
)
def test_clip_has_the_gradients_of_its_table(advantage: float, gradients: dict[float, float]) -> None:
    for ratio, expected in gradients.items():
        assert _gradient("clip", ratio, advantage) == expected, ratio


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_every_surrogate_starts_with_the_policy_gradient(name: str, advantage: float) -> None:
    assert _gradient(name, 1.0, advantage) == pytest.approx(advantage, rel=1e-12)


def test_clip_equals_its_formula() -> None:
    ratio, advantage = torch.tensor([0.5, 1.5, 0.5, 1.5]), torch.tensor([2.0, 2.0, -2.0, -2.0])
    torch.testing.assert_close(clip(ratio, advantage, 0.2), -torch.tensor([1.0, 2.4, -1.6, -3.0]))
