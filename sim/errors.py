"""What a user sees when something they asked for cannot be done."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake or a missing thing that the user can mend; its text is the one line they are shown."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """Return the error for a name that does not exist, with the nearest one that does.

    Args:
        kind: what the name should have named, e.g. ``"task"``.
        name: the name as given.
        known: the names that exist.
        where: what was being read, e.g. ``"config.yaml"``; empty when that is plain.
    """
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    hint = f"did you mean {lowered[close[0]]!r}?" if close else f"known: {', '.join(names) or 'none'}"
    place = f" in {where}" if where else ""
    return UserError(f"unknown {kind} {name!r}{place}; {hint}")


def missing(what: str, package: str, extra: str) -> UserError:
    """Return the error for an optional package that is not installed, with the command that installs it.

    Args:
        what: what needs it, e.g. ``"tasks.adapters.sb3"``.
        package: the package, by the name it is installed by.
        extra: the extra of this project that brings it.
    """
    return UserError(f'{what} needs {package}; pip install "robolearn[{extra}]"')
