"""The logs: complete, equal after a resume, and never in the way."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from robolearn import log
from robolearn.run import Run


def values(iteration: int) -> dict[str, float]:
    return {"reward/track": 1 / (iteration + 3), "loss/value": 10.0**-iteration}


def write(path: Path, start: int, stop: int) -> None:
    metrics = log.MetricsFile(path, start)
    for i in range(start, stop):
        metrics.write(i, values(i))
    metrics.close()


@pytest.mark.parametrize("tail", ["", '{"iteration": 7, "rew', "{"])
def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path, tail: str):
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    write(whole, 0, 10)
    write(resumed, 0, 7)
    with resumed.open("a") as file:
        file.write(tail)
    write(resumed, 4, 10)
    assert resumed.read_bytes() == whole.read_bytes()
    assert log.read_metrics(whole) == [{"iteration": i} | values(i) for i in range(10)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["resumed.jsonl", "whole.jsonl"]


def test_a_line_is_readable_while_the_training_runs(tmp_path: Path):
    metrics = log.MetricsFile(tmp_path / "m.jsonl", 0)
    metrics.write(0, {"a": 1.0, "b": float("nan"), "c": float("inf")})
    assert log.read_metrics(tmp_path / "m.jsonl") == [{"iteration": 0, "a": 1.0, "b": None, "c": None}]
    metrics.close()


def test_a_half_written_line_is_not_read(tmp_path: Path):
    (tmp_path / "m.jsonl").write_text('{"iteration": 0}\n{"iteration": 1')
    assert log.read_metrics(tmp_path / "m.jsonl") == [{"iteration": 0}]


def test_a_damaged_line_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "m.jsonl").write_text('{"iteration": 0}\n\0\0\n{"iteration": 2}\n')
    assert log.read_metrics(tmp_path / "m.jsonl") == [{"iteration": 0}, {"iteration": 2}]
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path}/m.jsonl, line 2 is not a line of metrics and is left out"
    ]


def test_everything_is_logged_by_name(tmp_path: Path):
    screen = io.StringIO()
    with log.Log(Run(tmp_path), 0, 3, 64, Console(file=screen)) as training:
        for i in range(3):
            training.write(i, {"reward/track": torch.tensor(0.1 * i), "loss/value": 2}, shown=["reward/track"])
    exact = float(torch.tensor(0.1 * 2))
    assert log.read_metrics(tmp_path / "metrics.jsonl")[2] == {"iteration": 2, "reward/track": exact, "loss/value": 2.0}
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["reward/track", "loss/value"]
    assert [(e.step, e.value) for e in events.Scalars("loss/value")] == [(i, 2.0) for i in range(3)]
    assert "iteration 3/3" in screen.getvalue()
    assert "track 0.2" in screen.getvalue()


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path: Path):
    for start, stop in ((0, 6), (4, 8)):
        board = log.TensorBoard(tmp_path, start)
        for i in range(start, stop):
            board.write(i, {"a": float(i)})
        board.close()
    events = EventAccumulator(str(tmp_path), purge_orphaned_data=True).Reload()
    assert [e.step for e in events.Scalars("a")] == list(range(8))


def test_progress_is_a_line_now_and_then_where_nobody_watches(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(log.time, "monotonic", lambda: now)
    screen = io.StringIO()
    progress = log.ProgressDisplay(10, 40, 50, Console(file=screen), every_s=30.0)
    for done in range(11, 41):
        now += 10.0  # 50 steps in 10 s
        progress.update(done, {"episode/return": 1.23456})
    progress.close()
    lines = screen.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "iteration 13/40  5 steps/s  4:30 left  return 1.235"
    assert lines[-1] == "iteration 40/40  5 steps/s  0:00 left  return 1.235"


def test_progress_is_a_bar_on_a_terminal():
    screen = io.StringIO()
    progress = log.ProgressDisplay(0, 4, 50, Console(file=screen, force_terminal=True, width=120))
    progress.update(3, {"return": 2.0})
    progress.close()
    assert "3/4" in screen.getvalue()
    assert "steps/s" in screen.getvalue()
    assert "return 2" in screen.getvalue()


def test_a_table(capsys: pytest.CaptureFixture):
    log.print_table("Result", ["what", "value"], [["fall rate", 0.0123456], ["episodes", 256]])
    text = capsys.readouterr().out
    assert "fall rate" in text
    assert "0.01235" in text
    assert "256" in text


FULL = """
import resource, sys
from pathlib import Path
from rich.console import Console
from robolearn.log import Log
from robolearn.run import Run
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
with Log(Run(Path(sys.argv[1])), 0, 300, 1, Console(quiet=True)) as log:
    for i in range(300):
        log.write(i, {"a/long/name/of/a/metric": i / 7})
print("trained")
"""


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "trained\n"
    warnings = done.stderr.splitlines()
    assert len(warnings) == 2
    assert all("File too large" in w or "No space left" in w for w in warnings)
    assert sum("metrics.jsonl: " in w for w in warnings) == sum("tfevents" in w for w in warnings) == 1
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and json.loads(line) for line in lines)
    assert [json.loads(line)["iteration"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 30
    points = EventAccumulator(str(tmp_path)).Reload().Scalars("a/long/name/of/a/metric")
    assert [p.step for p in points] == list(range(len(points)))
    assert len(points) > 30
