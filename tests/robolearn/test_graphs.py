"""Recorded gradient steps against the steps themselves; on the CPU by a recorder that is as blind as a CUDA graph."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from robolearn.algorithms import offpolicy
from robolearn.algorithms.graphs import GraphedStep
from robolearn.algorithms.offpolicy import OffPolicy
from tasks.env import Env
from tests.small_offpolicy import ALGORITHMS, made, pendulum

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")
"""Operations whose result the host has to see, by the beginnings of their names."""


class _Recorder(TorchDispatchMode):
    """Records the operations of a function, for the tensors that they were made on; nothing else of it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [x for x in tree_leaves(args[1:]) if isinstance(x, torch.Tensor) and x.dtype == torch.bool]
        waits = name.startswith(WAITS) or (name.startswith("index") and bool(masks))
        assert not waits, f"{name} waits for the device"
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and _storage(old) != _storage(new):
                    old.copy_(new)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _capture(function: Callable[[], None]) -> Callable[[], None]:
    """Record a function. Recording executes it once, which CUDA's does not, so the first replay is left out."""
    recorder, executed = _Recorder(), [True]
    with recorder:
        function()

    def replay() -> None:
        if not executed.pop():
            recorder.replay()
        executed.append(False)

    return replay


def _collected(name: str, device: str = "cpu", **changes: Any) -> OffPolicy:
    torch.manual_seed(0)
    worlds: Any = pendulum() if device == "cpu" else _OnDevice(pendulum(), device)
    algorithm = made(name, worlds, **changes)
    algorithm.collect(worlds)
    return algorithm


def _state(algorithm: OffPolicy) -> list[torch.Tensor]:
    return [x for x in tree_leaves(algorithm.state_dict()) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_was_recorded_learns_what_the_step_learns(name: str) -> None:
    changes = {"normalize_observation": True, "kl_period": 3} if name == "mdpo_off" else {}
    eager, graphed = _collected(name, **changes), _collected(name, **changes)
    graphed._graphed = GraphedStep(graphed.learn, _capture, eager_calls=2)
    for _ in range(12):
        eager.gradient_step()
        graphed.gradient_step()
    for ours, recorded in zip(_state(eager), _state(graphed), strict=True):
        assert torch.equal(ours, recorded)
    assert eager.update() == graphed.update()


def test_a_step_that_asks_for_a_value_is_no_graph() -> None:
    algorithm = _collected("sac")
    learn = algorithm.learn

    def asking(batch: Any, policy_too: bool) -> Any:
        noted = learn(batch, policy_too)
        return noted if noted["loss/value"].item() > 0 else {}

    algorithm._graphed = GraphedStep(asking, _capture, eager_calls=0)
    with pytest.raises(AssertionError, match="waits for the device"):
        algorithm.gradient_step()


def test_a_checkpoint_read_into_a_running_algorithm_is_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # The optimisers' tensors are replaced by it, so a step recorded before would go on changing what nobody reads.
    eager = _collected("td3")
    monkeypatch.setattr(offpolicy, "graphed_where_it_pays", lambda step, *_: GraphedStep(step, _capture, 1))
    graphed = _collected("td3")
    for _ in range(6):
        eager.gradient_step()
        graphed.gradient_step()
    graphed.load_state_dict(copy.deepcopy(graphed.state_dict()))
    for _ in range(6):
        eager.gradient_step()
        graphed.gradient_step()
    for ours, recorded in zip(_state(eager), _state(graphed), strict=True):
        assert torch.equal(ours, recorded)


class _OnDevice:
    """Worlds of the CPU whose tensors are handed over on another device."""

    def __init__(self, env: Env, device: str):
        self.env, self.device = env, torch.device(device)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.env, name)
        return self._moved(value) if name == "obs_buf" else value

    def reset(self) -> Any:
        return self._moved(self.env.reset())

    def step(self, action: torch.Tensor) -> Any:
        return self._moved(self.env.step(action.cpu()))

    def _moved(self, tree: Any) -> Any:
        return tree_map(lambda x: x.to(self.device) if isinstance(x, torch.Tensor) else x, tree)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_a_gpu_the_graph_learns_what_the_step_learns(name: str) -> None:
    eager, graphed = _collected(name, "cuda"), _collected(name, "cuda")
    eager._graphed = eager.learn
    assert isinstance(graphed._graphed, GraphedStep)
    for _ in range(12):
        eager.gradient_step()
        graphed.gradient_step()
    # The same kernels on the same numbers; those that sum atomically may do so in another order.
    for ours, recorded in zip(_state(eager), _state(graphed), strict=True):
        torch.testing.assert_close(ours, recorded, rtol=1e-4, atol=1e-5)
