"""A run directory: everything one training writes, and what is needed to read it back.

runs/<task>/<time>-<algorithm>/
    config.yaml         complete; loads back
    environment.json    versions, code, device, seed, command
    metrics.jsonl       one object for each iteration
    checkpoints/        see robolearn.checkpoint
    events.out.*        for TensorBoard
    lock                the id of the process that trains it, locked by that process
"""

import fcntl
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from robolearn import checkpoint
from robolearn.config import save_yaml
from sim.errors import UserError

PACKAGES = (
    "robolearn", "mujoco", "mujoco-warp", "torch", "numpy", "gymnasium", "stable-baselines3", "onnx", "onnxruntime",
)  # fmt: skip
"""Whose versions a result depends on."""


@dataclass(frozen=True)
class Run:
    """The files of one training."""

    path: Path
    """The run directory."""
    checkpoint: Path | None = None
    """The checkpoint that was asked for; None for the newest that loads."""

    @property
    def config(self) -> Path:
        """``config.yaml``."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """``environment.json``."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """``metrics.jsonl``."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def load(self, device: str = "cpu") -> tuple[Path, dict[str, Any]]:
        """Return the checkpoint that was asked for, or the newest that loads: its path and its payload.

        Raises:
            UserError: no checkpoint loads.
        """
        if self.checkpoint is not None:
            return self.checkpoint, checkpoint.load(self.checkpoint, device)
        return checkpoint.latest(self.checkpoints, device)

    def discard_if_empty(self) -> bool:
        """Remove the run, and its task's folder if nothing else is there, unless it has a checkpoint; return if so."""
        if checkpoint.files(self.checkpoints):
            return False
        self.discard()
        return True

    def discard(self) -> None:
        """Remove the run, and its task's folder if nothing else is there."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other training write here meanwhile; the lock ends with its process, however that ends.

        Raises:
            UserError: another training holds the lock, or it cannot be written.
        """
        path = self.path / "lock"
        try:
            file = path.open("a+b", buffering=0)
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(b"%d\n" % os.getpid())
            except BlockingIOError:
                file.seek(0)
                holder = file.read().decode().strip()
                raise UserError(f"{self.path} is being trained by process {holder}") from None
            except OSError as e:
                raise UserError(f"cannot lock {path}: {e.strerror}") from None
            yield


def create(root: Path | str, task: str, algorithm: str, config: Any, seed: int, device: str) -> Run:
    """Make the directory ``root/<task>/<time>-<algorithm>`` with ``config.yaml`` and ``environment.json``.

    Raises:
        UserError: the directory cannot be written.
    """
    folder = Path(root) / _file_name(task)
    now = datetime.now().astimezone()
    try:
        run = Run(_new_directory(folder, f"{now:%Y-%m-%d_%H-%M-%S}", _file_name(algorithm)))
        try:
            run.checkpoints.mkdir()
            save_yaml(run.config, config)
            about = {"started": now.isoformat(timespec="seconds")} | environment(seed, device)
            run.environment.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        except BaseException:
            run.discard_if_empty()
            raise
    except OSError as e:
        raise UserError(f"cannot write a run into {folder}: {e.strerror}") from None
    return run


def open(path: Path | str) -> Run:
    """Open the run directory ``path``, the newest run below it, or the run that the checkpoint ``path`` belongs to.

    Raises:
        UserError: ``path`` is none of these, or the run has no checkpoint yet.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"there is no run or checkpoint {path}")
    if path.is_file():
        run = Run(path.parent.parent, checkpoint=path)
        if path.suffix != checkpoint.SUFFIX or not run.config.is_file():
            raise UserError(f"{path} is not a checkpoint in a run directory")
        return run
    run = Run(path)
    if not run.config.is_file():
        if not _runs(path):
            raise UserError(f"{path} is not a run directory: it has no config.yaml")
        return latest(path)
    if not checkpoint.files(run.checkpoints):
        raise UserError(f"{path} has no checkpoint: its training ended before it saved one; train anew")
    return run


def latest(root: Path | str, task: str = "*") -> Run:
    """Return the newest run below ``root``, of one task or of any.

    Raises:
        UserError: there is none with a checkpoint.
    """
    for path in reversed(_runs(Path(root), task)):
        if checkpoint.files(Run(path).checkpoints):
            return Run(path)
    of = "" if task == "*" else f" of {task}"
    raise UserError(f"no run{of} with a checkpoint below {root}; make one with `robolearn train`")


def environment(seed: int, device: str) -> dict[str, Any]:
    """Return what a result depends on besides the config, as plain data for ``environment.json``."""
    return {
        "command": shlex.join(sys.argv),
        "seed": seed,
        "device": _device_name(device),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "git": _git(Path(__file__)),
    }


def _file_name(name: str) -> str:
    """Return a name as one part of a path: a task of a user's own is path/to/file.py:Class, an algorithm sb3:sac."""
    return name.replace("/", "_").replace(":", "_")


def _new_directory(folder: Path, time: str, algorithm: str) -> Path:
    """Make a directory that did not exist; runs started within one second are numbered, in an order names keep."""
    folder.mkdir(parents=True, exist_ok=True)
    attempt = 0
    while True:
        path = folder / (f"{time}.{attempt:02d}-{algorithm}" if attempt else f"{time}-{algorithm}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            attempt += 1


def _runs(root: Path, task: str = "*") -> list[Path]:
    """Return the run directories at or one level below ``root``, oldest first: names begin with the time."""
    found = [config.parent for pattern in ("*", f"{task}/*") for config in root.glob(f"{pattern}/config.yaml")]
    return sorted(found, key=lambda path: path.name)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device_name(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def _git(file: Path) -> dict[str, Any] | None:
    """Return the commit that ``file`` is tracked in; None for an installed copy or where there is no git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return None
