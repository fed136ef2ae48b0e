"""Ensembles against plain layers, one network at a time."""

import copy
import platform

import pytest
import torch
from torch import nn

from robolearn.policies.action_value import ActionValue, HyperEnsemble
from robolearn.policies.ensemble import MLPEnsemble, relative_cost
from robolearn.policies.mlp import ACTIVATIONS


def _layers(network: MLPEnsemble, member: int) -> nn.Sequential:
    """Return one network of an ensemble as torch's own layers."""
    parts = network.layers(network.flat.detach())
    modules: list[nn.Module] = []
    for weight, bias in parts:
        layer = nn.Linear(weight.shape[1], weight.shape[2])
        layer.weight.data, layer.bias.data = weight[member].t().clone(), bias[member, 0].clone()
        modules += [layer, copy.deepcopy(network.nonlinear)]
    return nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_both_paths_equal_plain_layers_in_value_and_in_every_gradient(activation: str) -> None:
    torch.manual_seed(0)
    network = MLPEnsemble(3, 5, 2, (32, 16), activation)
    x, g = torch.randn(40, 5), torch.randn(3, 40, 2)
    expected, expected_x, expected_parameters = [], torch.zeros(40, 5), torch.zeros_like(network.flat)
    slots = network.layers(expected_parameters)
    for member in range(3):
        single, rows = _layers(network, member), x.clone().requires_grad_()
        out = single(rows)
        out.backward(g[member])
        expected.append(out.detach())
        assert rows.grad is not None
        expected_x += rows.grad
        for (weight, bias), layer in zip(slots, [m for m in single if isinstance(m, nn.Linear)], strict=True):
            weight[member], bias[member, 0] = layer.weight.grad.t(), layer.bias.grad  # type: ignore[union-attr, assignment]
    for path in (network.forward, network.fused):
        rows = x.clone().requires_grad_()
        out = path(rows)
        gradient_x, gradient = torch.autograd.grad(out, (rows, network.flat), g)
        torch.testing.assert_close(out, torch.stack(expected), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient_x, expected_x, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, expected_parameters, rtol=1e-4, atol=1e-4)


def test_frozen_networks_give_gradients_to_the_input_alone() -> None:
    torch.manual_seed(0)
    network = MLPEnsemble(2, 5, 1, (16,), "relu")
    x = torch.randn(10, 5, requires_grad=True)
    first = network.fused(x, frozen=True, members=1)
    torch.testing.assert_close(first, network(x)[:1])
    (gradient,) = torch.autograd.grad(first.sum(), x)
    (expected,) = torch.autograd.grad(network(x)[:1].sum(), x)
    torch.testing.assert_close(gradient, expected)
    network.fused(x, frozen=True).sum().backward()
    assert network.flat.grad is None


def test_bfloat16_is_near_and_its_parameters_stay_float32() -> None:
    torch.manual_seed(0)
    network = MLPEnsemble(2, 5, 1, (64, 64), "silu", "bfloat16")
    x = torch.randn(200, 5, requires_grad=True)
    near, exact = network.fused(x), network(x)
    assert near.dtype == network.flat.dtype == torch.float32
    # bfloat16 holds 8 bits: 0.4 % for each product of layers whose outputs are of order 0.1.
    torch.testing.assert_close(near, exact, rtol=0.02, atol=3e-3)
    ours, plain = (torch.autograd.grad(out.sum(), network.flat)[0] for out in (near, exact))
    assert ((ours - plain).norm() / plain.norm()).item() < 0.02


def test_what_a_product_costs_tells_a_processor_that_has_the_format_from_one_that_emulates_it() -> None:
    assert relative_cost("float32") == 1.0
    if not hasattr(torch.cpu, "get_capabilities") or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs a torch that names the formats of this processor")
    has = torch.cpu.get_capabilities()
    if has["avx512_bf16"] or has["amx_bf16"]:
        assert relative_cost("bfloat16") < 1
    elif not has["avx512_f"]:
        assert relative_cost("bfloat16") > 5  # emulated value by value


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_fast_path_follows_the_parameters_wherever_they_go(precision: str) -> None:
    torch.manual_seed(0)
    network = MLPEnsemble(2, 5, 1, (16,), "relu", precision)
    other = MLPEnsemble(2, 5, 1, (16,), "relu", precision)
    copied = copy.deepcopy(network)
    x = torch.randn(10, 5)
    with torch.no_grad():
        before = network.fused(x)
        network.flat.mul_(2.0)
        torch.testing.assert_close(network.fused(x), network(x), rtol=0.02, atol=5e-3)
        assert torch.equal(copied.fused(x), before)
        other.load_state_dict(copied.state_dict())
        assert torch.equal(other.fused(x), before)
        other.double().float()
        assert torch.equal(other.fused(x), before)


def test_a_networks_own_network_equals_its_weights_applied_by_hand() -> None:
    torch.manual_seed(0)
    network = HyperEnsemble(2, 3, 2, 4, hidden=8, widths=(16, 16))
    x = torch.randn(6, 5)
    out = network.fused(x)
    state, action = x[:, :3], x[:, 3:]
    for member in range(2):
        for row in range(6):
            h = state[row : row + 1]
            for enter, block in zip(network.enter, network.blocks, strict=True):
                h = enter(h)[member]
                h = h + block(torch.relu(h))[member]
            parts = [
                head(torch.relu(h))[member].view(shape)
                for head, shape in zip(network.heads, network.shapes, strict=True)
            ]
            hidden = torch.relu(action[row] @ parts[0] + parts[1][0])
            torch.testing.assert_close(out[member, row], hidden @ parts[2] + parts[3][0], rtol=1e-4, atol=1e-5)


def test_a_hyper_critic_is_a_function_of_state_and_action_with_their_gradients() -> None:
    torch.manual_seed(0)
    value = ActionValue(3, HyperEnsemble(2, 3, 2, 1, hidden=8, widths=(16,)), normalize=False)
    observation, action = torch.randn(6, 3), torch.randn(6, 2, dtype=torch.float32, requires_grad=True)
    value(observation, action).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in value.parameters())
    gradient = action.grad
    (frozen,) = torch.autograd.grad(value(observation, action, frozen=True).sum(), action)
    torch.testing.assert_close(frozen, gradient)
    assert value(observation, action, frozen=True, members=1).shape == (1, 6, 1)
