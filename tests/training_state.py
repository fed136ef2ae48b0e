"""What trainings left behind, so that two of them can be held equal bit for bit."""

from pathlib import Path
from typing import Any

import torch

from robolearn import checkpoint
from robolearn.log import read_metrics


def differing(a: Any, b: Any, where: str = "") -> list[str]:
    """Return where two nested structures of tensors and plain values are not equal bit for bit."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [place for key in a for place in differing(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [place for i, pair in enumerate(zip(a, b, strict=True)) for place in differing(*pair, f"{where}.{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        return [] if same else [where]
    return [] if a == b else [where]


def last_state(run: Path) -> dict[str, Any]:
    """Return everything of a run's last checkpoint that the wall clock does not decide."""
    _, payload = checkpoint.latest(run / "checkpoints")
    return {name: value for name, value in payload.items() if name != "seconds"}


def logged(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics of a run without the wall clock's."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
