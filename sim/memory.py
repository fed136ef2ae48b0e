"""How much memory is free, asked before a large allocation."""

import os
from pathlib import Path

import torch

from sim.errors import UserError


def free_memory(device: torch.device) -> int:
    """Return the bytes that may still be allocated on a device: its own, or this process's share of the machine's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = Path("/sys/fs/cgroup")  # a container's limit, which the machine's own figures do not know of
    try:
        limit, used = ((group / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def check_fits(what: str, size: int, device: torch.device, remedy: str) -> None:
    """Refuse an allocation of ``size`` bytes that does not fit.

    Raises:
        UserError: it does not; names ``what``, both sizes and the remedy.
    """
    free = free_memory(device)
    if size > free:
        raise UserError(f"{what} needs {size / 1e9:.1f} GB and {device} has {free / 1e9:.1f} GB free; {remedy}")
