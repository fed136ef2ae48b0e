"""Checkpoints: plain data in one file that is either whole or not there.

A file is written beside its final name and renamed, so a kill or a full disk at any moment leaves the earlier ones as
they were. It is a torch file of tensors, numbers, texts, lists and dicts; reading one never runs code.
"""

import logging
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sim.errors import UserError

FORMAT = "robolearn checkpoint"
VERSION = 1
"""Raised when a payload written before can no longer be read as it stands."""
SUFFIX = ".pt"
_PARTIAL = ".partial"
_NUMBERED = "iteration-"

_log = logging.getLogger(__name__)


def save(path: Path | str, payload: Mapping[str, Any]) -> Path:
    """Write ``payload`` to ``path`` whole or not at all, and return the path.

    Args:
        payload: nested dicts, lists and tuples of tensors, numbers, texts and None. Tensors are detached.

    Raises:
        UserError: the file cannot be written, e.g. the disk is full; what was at ``path`` before is still there.
        TypeError: the payload holds something else; names where.
    """
    path = Path(path)
    content = {"format": FORMAT, "version": VERSION, "payload": _plain(payload, "")}
    partial = path.with_name(path.name + _PARTIAL)
    try:
        try:
            with partial.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch hides a failed write behind its own error
        if not isinstance(cause, OSError):
            raise
        good = files(path.parent)
        remains = f"the last good checkpoint is {good[-1]}" if good else "there is no earlier checkpoint"
        raise UserError(f"cannot write {path}: {cause.strerror}; {remains}") from None
    return path


def save_numbered(folder: Path, iteration: int, payload: Mapping[str, Any], keep: int = 3) -> Path:
    """Save as the checkpoint after ``iteration`` iterations, and remove all but the last ``keep`` numbered ones.

    Files of other names in the folder (milestones such as ``best.pt``, written with ``save``) are kept.

    Raises:
        UserError, TypeError: as ``save``; nothing is removed then.
    """
    path = save(folder / f"{_NUMBERED}{iteration:08d}{SUFFIX}", payload)
    numbered = [p for p in files(folder) if _iteration(p) is not None]
    leftovers = [p for p in folder.glob(f"*{_PARTIAL}") if p.is_file()]  # of a process that was killed while writing
    for old in numbered[:-keep] + leftovers:
        old.unlink(missing_ok=True)
    return path


def load(path: Path | str, device: str = "cpu") -> dict[str, Any]:
    """Return the payload of a checkpoint, with its tensors on ``device``.

    Raises:
        UserError: the file is missing, truncated, corrupt, of another format version or no checkpoint at all.
    """
    path = Path(path)
    corrupt = UserError(f"{path} is truncated or corrupt")
    try:
        if not _intact(path):
            raise corrupt
        content = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path} holds more than data, so robolearn did not write it and does not load it") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from None
    except (RuntimeError, ValueError, KeyError, EOFError):
        raise corrupt from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not a robolearn checkpoint")
    if content["version"] != VERSION:
        raise UserError(
            f"{path} is a checkpoint of format {content['version']} and this robolearn reads format {VERSION}; "
            "use the robolearn that wrote it (its version is in environment.json)"
        )
    return content["payload"]


def files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first: named ones by their time, then numbered ones by number."""
    found = [p for p in folder.glob(f"*{SUFFIX}") if p.is_file()]
    named = sorted((p for p in found if _iteration(p) is None), key=lambda p: (p.stat().st_mtime_ns, p.name))
    numbered = [(number, p) for p in found if (number := _iteration(p)) is not None]
    return named + [p for _, p in sorted(numbered)]


def latest(folder: Path, device: str = "cpu") -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint in a folder that loads: its path and payload. Newer ones that do not are warned of.

    Raises:
        UserError: there is none.
    """
    found, refused = files(folder), []
    for path in reversed(found):
        try:
            payload = load(path, device)
        except UserError as e:
            refused.append(str(e))
            continue
        for reason in refused:
            _log.warning("%s; taking a checkpoint before it", reason)
        return path, payload
    if found:
        raise UserError(f"none of the {len(found)} checkpoints in {folder} can be loaded: {'; '.join(refused)}")
    raise UserError(f"there is no checkpoint in {folder}")


def rng_state() -> dict[str, Any]:
    """Return the state of the global random generators of Python, numpy and torch (every CUDA device) as plain data."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - what users' code may draw from
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "words": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "position": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put the global random generators into a state returned by ``rng_state``.

    CUDA generators are set where the machine has as many devices as the state.
    """
    python, numpy_state = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(  # noqa: NPY002
        {
            "bit_generator": "MT19937",
            "state": {"key": numpy_state["words"].numpy().astype(np.uint32), "pos": numpy_state["position"]},
            "has_gauss": numpy_state["has_gauss"],
            "gauss": numpy_state["gauss"],
        }
    )
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


def _plain(value: Any, key: str) -> Any:
    """Return ``value`` as what ``weights_only`` reads back, or say where it holds something else."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return tensor if whole else tensor.clone()  # a view would take its whole storage into the file
    if isinstance(value, Mapping):
        for name in value:
            if type(name) not in (str, int):
                raise TypeError(f"checkpoint key {name!r} in {key or 'the payload'} is neither text nor integer")
        return {name: _plain(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{key}.{i}") for i, item in enumerate(value))
    # Exact types: numpy's float64 is a float to isinstance, and its pickle is not plain data.
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"checkpoint entry {key} is a {type(value).__name__}, not a tensor, number, text, list or dict")


def _intact(path: Path) -> bool:
    """Compare every record of the file with its checksum, which torch's reader does not do."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error):
        return False


def _iteration(path: Path) -> int | None:
    number = path.stem.removeprefix(_NUMBERED)
    return int(number) if number != path.stem and number.isdecimal() else None


def _sync_directory(folder: Path) -> None:
    """Make the renaming itself survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
