"""Generalised advantage estimation."""

import torch


def gae(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    lam: float,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the advantages (T, N) (Schulman et al. 2016, eq. 16), told apart at both kinds of end.

    A terminated step has no future value; a truncated one has the value of its true last observation. The trace of
    temporal differences is cut at both, and where a row is no step: the step before one keeps the value of the
    observation that it led to.

    Args:
        reward: (T, N).
        value: (T, N) value of the observation each action was taken in.
        next_value: (T, N) value of the observation each step led to, before any reset.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        gamma: discount factor.
        lam: lambda, the trace's decay.
        valid: (T, N) bool: whether the row is a step of an episode, as all are if not given; the advantage of others
            is 0.
    """
    delta = reward + gamma * next_value * ~terminated - value
    decay = gamma * lam * (~(terminated | truncated)).to(reward.dtype)
    advantage = torch.empty_like(delta)
    trace = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        trace = delta[t] + decay[t] * trace
        if valid is not None:
            trace = torch.where(valid[t], trace, 0.0)
        advantage[t] = trace
    return advantage
