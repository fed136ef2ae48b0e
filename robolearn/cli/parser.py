"""Command-line options of one command; every mistake in them is one line."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from sim.errors import UserError, unknown


class Failure(Exception):
    """What was asked for was right, and the run of it failed; its text is the one line the user is shown."""


@contextmanager
def failures() -> Iterator[None]:
    """Let a ``UserError`` of the block count as a run that failed instead of a wrong request."""
    try:
        yield
    except UserError as error:
        raise Failure(str(error)) from error


class Parser(argparse.ArgumentParser):
    """Parses the options of ``robolearn COMMAND``; hyphens and underscores in their names are alike."""

    def __init__(self, command: str, description: str, add_help: bool = True):
        super().__init__(
            prog=f"robolearn {command}",
            description=description,
            allow_abbrev=False,
            add_help=add_help,
            formatter_class=_Help,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of all options.

        Raises:
            UserError: an option does not exist, lacks its value or has a wrong one.
        """
        values, rest = self.parse_some(arguments)
        if rest:
            raise self.unknown(rest[0])
        return values

    def parse_some(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the values of this command's own options, and the other words in their order."""
        return self.parse_known_args([hyphenated(word) for word in arguments])

    def unknown(self, word: str, others: Iterable[str] = ()) -> UserError:
        """Return the error for a word that is no option of this command, nor one of the ``others``."""
        flag = word.partition("=")[0]
        if not flag.startswith("-"):
            return UserError(f"unexpected argument {word!r}; see {self.prog} --help")
        return unknown("flag", flag, [*(f for f in self._option_string_actions if f.startswith("--")), *others])

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        raise UserError(f"{message}; see {self.prog} --help")


def hyphenated(word: str) -> str:
    """Return a flag with the underscores of its name, not of its value, as hyphens; any other word as it is."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def whole(word: str) -> int:
    """Return a whole number; a million may be written 1e6.

    Raises:
        ValueError: the word is none.
    """
    try:
        return int(word)
    except ValueError:
        value = float(word)
    if not value.is_integer():
        raise ValueError(f"{word!r} is not a whole number")
    return int(value)


def at_least(lowest: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number of at least ``lowest``."""

    def read(word: str) -> int:
        try:
            value = whole(word)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {lowest}, not {word!r}")
        return value

    return read


def positive(text: str) -> float:
    """Return a positive number; the type of an option that is one."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, not {text!r}")
    return value


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)
