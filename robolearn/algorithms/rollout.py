"""The storage of one rollout."""

from collections.abc import Iterator

import torch


class Rollout:
    """T steps of N worlds, preallocated; `flat` and `minibatches` see the S <= T * N valid ones as samples."""

    def __init__(
        self, steps: int, num_envs: int, policy_size: int, critic_size: int, actions: int, device: torch.device
    ):
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(steps, num_envs, *shape, dtype=dtype, device=device)

        self.policy_obs = zeros(policy_size)
        """(T, N, D) what the policy saw."""
        self.critic_obs = zeros(critic_size)
        """(T, N, Dc) what the critic saw."""
        self.u = zeros(actions)
        """(T, N, A) the action before scaling and clipping."""
        self.mean = zeros(actions)
        """(T, N, A) the mean it was drawn about."""
        self.log_prob = zeros()
        """(T, N) its log density."""
        self.reward = zeros()
        """(T, N)"""
        self.next_value = zeros()
        """(T, N) value of the observation the step led to, before any reset."""
        self.value = zeros()
        """(T, N)"""
        self.advantage = zeros()
        """(T, N)"""
        self.target = zeros()
        """(T, N) what the value should become."""
        self.terminated = zeros(dtype=torch.bool)
        """(T, N)"""
        self.truncated = zeros(dtype=torch.bool)
        """(T, N)"""
        self.valid = torch.ones(steps, num_envs, dtype=torch.bool, device=device)
        """(T, N) whether the row is a step of an episode."""
        self.size = steps * num_envs

    def flat(self, name: str) -> torch.Tensor:
        """Return what is stored under a name in the valid rows, (S, ...)."""
        return getattr(self, name)[self.valid]

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator[dict[str, torch.Tensor]]:
        """Yield every sample once, in ``count`` random parts of equal size (the remainder is left out).

        Where there are fewer samples than that, each is a part.
        """
        names = ("policy_obs", "critic_obs", "u", "mean", "log_prob", "value", "advantage", "target")
        flat = {name: self.flat(name) for name in names}
        samples = len(flat["value"])
        order = torch.randperm(samples, generator=generator, device=self.reward.device)
        count = min(count, samples)
        size = samples // count
        for i in range(count):
            index = order[i * size : (i + 1) * size]
            yield {name: values[index] for name, values in flat.items()}
