"""What the operator asks, made into what the policy was trained to be asked."""

from collections.abc import Callable

import numpy as np

from deploy.contract import Command
from deploy.errors import ContractError

CommandSource = Callable[[float], "np.ndarray | None"]
"""Given the time in seconds since the start, the command `(C,)`, or None when there is no new one."""


class CommandShaper:
    """Holds a command to the contract: range, deadband, slew, and the default once it is too old.

    Args:
        commands: the contract's commands; a command vector `(C,)` holds their components one after the other.
        dt: control period, s.
    """

    def __init__(self, commands: tuple[Command, ...], dt: float) -> None:
        def spread(values: list[float]) -> np.ndarray:
            return np.repeat(np.array(values), [len(command.components) for command in commands])

        ranges = [limits for command in commands for limits in command.ranges]
        self._low, self._high = np.array(ranges, dtype=np.float64).reshape(-1, 2).T
        self._default = np.array([value for command in commands for value in command.default])
        self._deadband = spread([command.deadband for command in commands])
        self._slew = spread([np.inf if command.slew is None else command.slew * dt for command in commands])
        self._timeout = spread([np.inf if command.timeout_s is None else command.timeout_s for command in commands])
        self._asked = self._default.copy()
        self._asked_at = 0.0
        self.value = self._default.copy()

    def update(self, asked: np.ndarray | None, time: float) -> np.ndarray:
        """Return the command `(C,)` to show the policy at `time` (s), in an array that the next call overwrites.

        Raises:
            ContractError: a command of another length, or one that is not finite.
        """
        if asked is not None:
            if np.shape(asked) != self._asked.shape:
                raise ContractError(f"a command has shape {np.shape(asked)}, and the policy takes {self._asked.shape}")
            if not np.isfinite(asked).all():
                raise ContractError("a command is not finite")
            self._asked[:] = asked
            self._asked_at = time
        wanted = np.where(time - self._asked_at > self._timeout, self._default, self._asked)
        wanted = np.clip(wanted, self._low, self._high)
        wanted[np.abs(wanted) < self._deadband] = 0.0
        self.value += np.clip(wanted - self.value, -self._slew, self._slew)
        return self.value
