"""What the first and the second interrupt do."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from robolearn.interrupts import interrupts


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the handlers as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_the_second_interrupt_ends_it_even_where_the_program_began_in_the_background(before: Any) -> None:
    signal.signal(signal.SIGINT, before)
    with interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_an_interrupt_nothing_is_set_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupts() as interrupted:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert not interrupted.is_set()
    assert signal.getsignal(signal.SIGTERM) is before
