"""What a training says of itself: metrics.jsonl, TensorBoard events, and progress on the terminal.

A log that cannot be written is warned of once and training goes on: logging never decides whether a policy is saved.
"""

import errno
import json
import logging
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from robolearn.run import Run

_log = logging.getLogger(__name__)


class Log:
    """Writes each iteration's metrics everywhere they go.

    Metrics are flat, named ``group/name``. Those of the group ``time`` are wall-clock measurements; all others are the
    same, bit for bit, whether or not the training was interrupted and resumed.
    """

    def __init__(self, run: Run, start: int, total: int, steps_per_iteration: int, console: Console | None = None):
        """Begin at iteration ``start`` (0, or the number of iterations the loaded checkpoint has done) of ``total``.

        Args:
            steps_per_iteration: environment steps in one iteration, for the rate.
            console: where progress goes; stderr unless given.
        """
        self._metrics = MetricsFile(run.metrics, start)
        self._tensorboard = TensorBoard(run.path, start)
        self._progress = ProgressDisplay(start, total, steps_per_iteration, console or Console(stderr=True))

    def write(self, iteration: int, metrics: Mapping[str, Any], shown: Sequence[str] = ()) -> None:
        """Log one iteration.

        Args:
            metrics: numbers, or tensors of one element, by name.
            shown: the names to show beside the progress bar.
        """
        values = {name: float(value) for name, value in metrics.items()}
        self._metrics.write(iteration, values)
        self._tensorboard.write(iteration, values)
        self._progress.update(iteration + 1, {name: values[name] for name in shown if name in values})

    def close(self) -> None:
        """Stop the progress display and close the files."""
        self._progress.close()
        self._tensorboard.close()
        self._metrics.close()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class MetricsFile:
    """``metrics.jsonl``: one JSON object for each iteration, out of the process when ``write`` returns.

    A value that is not finite is written as null, which JSON has.
    """

    def __init__(self, path: Path, start: int):
        """Open ``path`` to go on at iteration ``start``; drops its lines from there on, and a half-written one."""
        self._file = _RecordFile(path, b"".join(_lines_before(path, start)))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"iteration": iteration} | values, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a ``metrics.jsonl``, oldest first, without a half-written last line."""
    return [json.loads(line) for line in _lines_before(path, math.inf)]


class TensorBoard:
    """A TensorBoard event file in the run directory, written by TensorBoard's own record writer.

    Not through its ``SummaryWriter``: that writes from a thread, whose failure on a full disk is a traceback.
    """

    def __init__(self, folder: Path, start: int):
        """Begin a new event file, which supersedes the points at iteration ``start`` and later of earlier ones."""
        self._file = _RecordFile(folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}", b"")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        self._add(step=start, session_log=SessionLog(status=SessionLog.START))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step=iteration, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, **content: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())


class _RecordFile:
    """A file of records, each written whole or not at all. Where that fails, one warning, and the next is tried."""

    def __init__(self, path: Path, content: bytes):
        """Replace ``path`` with ``content`` and append from there."""
        self._path, self._end, self._warned, self._file = path, len(content), False, None
        partial = path.with_name(path.name + ".partial")
        try:
            partial.write_bytes(content)
            partial.replace(path)
            self._file = path.open("ab", buffering=0)
        except OSError as e:
            self._warn(e)

    def write(self, record: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._file.write(record) != len(record):  # a filling disk takes what fits and complains at the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._end += len(record)
        except OSError as e:
            os.ftruncate(self._file.fileno(), self._end)
            self._warn(e)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            _log.warning("cannot write %s: %s; training goes on, with gaps there", self._path, error.strerror)
        self._warned = True


class ProgressDisplay:
    """A bar with rate and time left on a terminal; a line now and then where the output is not one."""

    def __init__(
        self,
        start: int,
        total: int,
        steps_per_iteration: int,
        console: Console,
        every_s: float = 30.0,
        name: str = "iteration",
    ):
        """Show progress from iteration ``start`` to ``total``, a plain line at most each ``every_s`` seconds.

        Args:
            start: iterations that are done.
            total: iterations there will be.
            steps_per_iteration: environment steps in one, for the rate.
            console: where progress goes.
            every_s: least time between two plain lines, s.
            name: what an iteration is called there.
        """
        self._start, self._total, self._steps, self._name = start, total, steps_per_iteration, name
        self._console, self._every_s = console, every_s
        self._began = self._said = time.monotonic()
        self._bar = None
        if console.is_terminal:
            text = TextColumn("{task.fields[text]}")
            self._bar = Progress(BarColumn(), MofNCompleteColumn(), text, console=console)
            self._task = self._bar.add_task("training", total=total, completed=start, text="")
            self._bar.start()

    def update(self, done: int, shown: Mapping[str, float]) -> None:
        """Say that ``done`` iterations of the total are done."""
        now = time.monotonic()
        text = self._text(done, now - self._began, shown)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif done == self._total or now - self._said >= self._every_s:
            self._said = now
            self._console.print(f"{self._name} {done}/{self._total}  {text}", soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Take the bar off the terminal's live area."""
        if self._bar is not None:
            self._bar.stop()

    def _text(self, done: int, elapsed: float, shown: Mapping[str, float]) -> str:
        iterations = max(done - self._start, 1)
        left = elapsed / iterations * (self._total - done)
        rate = iterations * self._steps / max(elapsed, 1e-9)
        values = "".join(f"  {name.rsplit('/', 1)[-1]} {value:.4g}" for name, value in shown.items())
        return f"{rate:,.0f} steps/s  {_duration(left)} left{values}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout under its title, numbers to four digits and to the right."""
    table, console = Table(), Console()
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(title, soft_wrap=True, highlight=False, markup=False)
    console.print(table)


def _lines_before(path: Path, iteration: float) -> list[bytes]:
    """Return the whole lines of ``path`` that are of iterations before the given one."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]  # the process was killed while it wrote
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            if json.loads(line)["iteration"] < iteration:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            _log.warning("%s, line %d is not a line of metrics and is left out", path, number)
    return kept


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
