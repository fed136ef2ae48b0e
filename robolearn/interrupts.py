"""Interrupts that wait until the program can stop in order."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Turn the first interrupt or termination signal into an event; a second one ends the program at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    handled = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in handled}

    # A program begun in the background is told to ignore interrupts; whoever sends two of them means it.
    ends = {number: before[number] for number in handled}
    if before[signal.SIGINT] is signal.SIG_IGN:
        ends[signal.SIGINT] = signal.default_int_handler

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        event.set()
        signal.signal(number, ends[signal.Signals(number)])

    for number in handled:
        signal.signal(number, note)
    try:
        yield event
    finally:
        for number in handled:
            signal.signal(number, before[number])
