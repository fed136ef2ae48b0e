"""What `make demo` promises, and what a longer training reaches."""

import json
from pathlib import Path

import pytest

from robolearn.cli import main


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("steps", "velocity_error", "yaw_rate_error", "upright", "minutes"),
    [("5_000_000", 0.25, 0.35, 0.95, 15), ("12_000_000", 0.12, 0.20, 0.99, 45)],
)
def test_the_exported_policy_walks(
    steps: str,
    velocity_error: float,
    yaw_rate_error: float,
    upright: float,
    minutes: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--steps", steps]) == 0
    result = json.loads((tmp_path / "demo/eval.json").read_text(encoding="utf-8"))
    assert result["episodes"] == 256
    assert result["velocity_error"] <= velocity_error
    assert result["yaw_rate_error"] <= yaw_rate_error
    assert 1.0 - result["fell"] >= upright
    last = json.loads(next(tmp_path.rglob("metrics.jsonl")).read_text(encoding="utf-8").splitlines()[-1])
    assert last["time/total"] <= minutes * 60
