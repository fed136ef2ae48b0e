"""How well a policy does: whole episodes, each world's counted alike."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robolearn.environments import source_of
from robolearn.training import TrainConfig, make_env
from sim.errors import UserError
from tasks.vector_env import VectorEnv

Act = Callable[[torch.Tensor], torch.Tensor]
"""Policy observations (N, D) to actions (N, A)."""


def evaluate(act: Act, env: VectorEnv, episodes: int) -> dict[str, Any]:
    """Run whole episodes and return their statistics.

    Every world contributes the same number of episodes, the first ones it finishes, so that short episodes do not
    count more often than long ones.

    Args:
        act: the policy.
        env: where to run it; it is reset first.
        episodes: how many; rounded up to a multiple of the number of worlds.

    Returns:
        ``episodes``; mean, ``_std`` and ``_min`` and ``_max`` of ``return``; ``length_s``; for each termination
        its share of the episodes, and likewise for each outcome, e.g. ``success``, as their last steps have it; for
        each of the task's metrics its mean over time, then over episodes.
    """
    n, device = env.num_envs, env.device
    each = math.ceil(episodes / n)
    finished = torch.zeros(n, dtype=torch.int64, device=device)
    returns = torch.zeros(n, dtype=torch.float64, device=device)
    steps = torch.zeros(n, dtype=torch.float64, device=device)
    sums: dict[str, torch.Tensor] = {}
    rows: dict[str, list[torch.Tensor]] = {"return": [], "length": []}
    everywhere = torch.ones(n, dtype=torch.bool, device=device)
    with torch.no_grad():
        obs, _ = env.reset()
        while int(finished.min()) < each:
            obs, reward, terminated, truncated, extras = env.step(act(obs["policy"]))
            valid = extras.get("valid", everywhere)
            returns += reward
            steps += 1
            for name, value in extras["metrics"].items():
                sums[name] = sums.get(name, torch.zeros(n, dtype=torch.float64, device=device)) + value
            done = terminated | truncated
            counted = (done & (finished < each)).nonzero().squeeze(1)
            if len(counted):
                rows["return"].append(returns[counted])
                rows["length"].append(steps[counted])
                for name, flag in (extras["terminations"] | extras["outcomes"]).items():
                    rows.setdefault(f"share/{name}", []).append(flag[counted].double())
                for name, total in sums.items():
                    rows.setdefault(f"metric/{name}", []).append(total[counted] / steps[counted])
            finished += done
            for values in (returns, steps, *sums.values()):
                values[done | ~valid] = 0
    columns = {name: torch.cat(parts) for name, parts in rows.items()}
    result: dict[str, Any] = {"episodes": each * n}
    returned = columns.pop("return")
    result |= {"return": float(returned.mean()), "return_std": float(returned.std(correction=0))}
    result |= {"return_min": float(returned.min()), "return_max": float(returned.max())}
    result["length_s"] = float(columns.pop("length").mean()) * env.step_dt
    return result | {name.partition("/")[2]: float(values.mean()) for name, values in columns.items()}


def make_evaluation_env(config: TrainConfig, num_envs: int, seed: int) -> VectorEnv:
    """Return the environment that a config's policies are judged in: its noise and disturbances, no curriculum."""
    judged = source_of(config.sim).evaluation_config(config.task, config.env)
    return make_env(replace(config, env=judged), num_envs, seed)


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of an evaluation as JSON, whole or not at all; a number that is not finite as null.

    Raises:
        UserError: the file cannot be written.
    """
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in result.items()}
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from None
