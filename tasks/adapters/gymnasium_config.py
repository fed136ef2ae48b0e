"""What a Gymnasium environment can be told."""

from dataclasses import dataclass, field
from typing import Any

from sim.errors import UserError, unknown

WAYS = ("auto", "serial", "threads", "processes")
"""Where the worlds are stepped."""


@dataclass(kw_only=True)
class GymnasiumConfig:
    """The environment's own settings, and where its worlds are stepped."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments that the environment is made with, by the names it gives them, e.g. ctrl_cost_weight: 0.5."""
    max_steps: int = 0
    """Steps after which an episode is truncated; 0 for the environment's own limit."""
    worlds: str = "auto"
    """Where the worlds are stepped: serial (one after the other, in this process), threads, processes, or auto:
    serial for one world, processes for more."""
    workers: int = 0
    """Threads or processes that share the worlds; 0 for one for each core."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "workers"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.worlds not in WAYS:
            raise unknown("way to step worlds", self.worlds, WAYS)
