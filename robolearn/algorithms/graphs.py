"""Gradient steps as CUDA graphs: recorded once and launched whole, where kernels are shorter than their launches."""

from collections.abc import Callable, Iterable, Mapping

import torch

from robolearn.buffers.replay import Batch

Step = Callable[[Batch, bool], Mapping[str, torch.Tensor]]
"""Learns from a batch, the policy too if true, and returns () tensors to log."""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes the calls that a function makes, perhaps without executing them, and returns what executes them again."""


class GraphedStep:
    """Calls a step with batches of one size; after a few calls it only replays what the step did.

    The step must do the same on every call but for what is in tensors: no value may be read from the device, and what
    it changes it must change in place. Whatever replaces one of its tensors, as loading an optimiser does, needs a new
    `GraphedStep`.
    """

    def __init__(self, step: Step, capture: Capture, eager_calls: int = 3):
        """Wrap a step.

        Args:
            step: what is called.
            capture: how it is recorded.
            eager_calls: calls, of those with and without the policy each, that are made as they are before. They give
                libraries and optimisers the occasion to take their memory.
        """
        self.step, self.capture = step, capture
        self._left = {False: eager_calls, True: eager_calls}
        self._batch: Batch | None = None
        self._replays: dict[bool, tuple[Callable[[], None], Mapping[str, torch.Tensor]]] = {}

    def __call__(self, batch: Batch, policy_too: bool) -> Mapping[str, torch.Tensor]:
        """Learn from a batch; what is returned is overwritten by the next call of the same kind."""
        if self._left[policy_too]:
            self._left[policy_too] -= 1
            return self.step(batch, policy_too)
        static = self._take(batch)
        if policy_too not in self._replays:
            returned: dict[str, torch.Tensor] = {}
            replay = self.capture(lambda: returned.update(self.step(static, policy_too)))
            self._replays[policy_too] = replay, returned
        replay, noted = self._replays[policy_too]
        replay()
        return noted

    def _take(self, batch: Batch) -> Batch:
        """Copy a batch to where the recorded step reads it."""
        if self._batch is None:
            self._batch = Batch({name: rows.clone() for name, rows in batch.fields.items()},
                                batch.reward.clone(), batch.discount.clone(), batch.steps.clone())  # fmt: skip
        else:
            for name, rows in batch.fields.items():
                self._batch.fields[name].copy_(rows)
            for name in ("reward", "discount", "steps"):
                getattr(self._batch, name).copy_(getattr(batch, name))
        return self._batch


def cuda_capture(generators: Iterable[torch.Generator]) -> Capture:
    """Return what records a function as a CUDA graph; it may draw from these generators besides the global one."""

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    return capture


def graphed_where_it_pays(step: Step, device: torch.device, generators: Iterable[torch.Generator]) -> Step:
    """Return the step as it is for a CPU, and as graphs for a CUDA device."""
    return GraphedStep(step, cuda_capture(list(generators))) if device.type == "cuda" else step
