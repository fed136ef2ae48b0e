"""The time the control loop runs on."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock in whole nanoseconds that never goes back."""

    def now_ns(self) -> int:
        """Return the time."""
        ...

    def sleep_until(self, deadline_ns: int) -> None:
        """Return at the deadline, at once when it has passed."""
        ...


class MonotonicClock:
    """The computer's monotonic clock.

    Each sleep ends at an absolute deadline, so lateness is not carried from one period to the next; Python runs signal
    handlers during the sleep and then sleeps on.
    """

    def now_ns(self) -> int:
        """Return the time since an arbitrary start."""
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        """Return at the deadline, at once when it has passed."""
        remaining = deadline_ns - time.monotonic_ns()
        if remaining > 0:
            time.sleep(remaining * 1e-9)
