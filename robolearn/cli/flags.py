"""Every field of a config as a flag: ``--env.command.x -1 1``, ``--algorithm.learning-rate 3e-4``."""

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from robolearn.cli.parser import Parser, hyphenated, whole
from robolearn.config import parse_yaml, takes_any_key
from sim.errors import UserError


@dataclass(frozen=True)
class Flag:
    """One settable field."""

    path: tuple[str, ...]
    """The field's place in nested configs and dicts."""
    hint: Any
    """Its declared type."""

    @property
    def name(self) -> str:
        """The flag as it is written, e.g. ``--env.weights.track-velocity``."""
        return "--" + ".".join(self.path).replace("_", "-")


def flags_of(config: Any, prefix: tuple[str, ...] = ()) -> Iterator[Flag]:
    """Yield a flag for each field of a config dataclass, of the configs in it, and for each key of a dict in it.

    A dict that takes any key is a flag itself too.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint, path = getattr(config, field.name), hints[field.name], (*prefix, field.name)
        if is_dataclass(value):
            yield from flags_of(value, path)
        elif isinstance(value, dict) and value:
            if takes_any_key(hint):
                yield Flag(path, hint)
            yield from (Flag((*path, str(key)), get_args(hint)[1]) for key in value)
        else:
            yield Flag(path, hint)


def read(
    config: Any,
    words: Sequence[str],
    parser: Parser,
    fixed: Sequence[str] = (),
    elsewhere: Callable[[str], str] = lambda name: "",
) -> dict[str, Any]:
    """Return what the words of a command line change in a config, as nested dicts for ``config.updated``.

    Args:
        config: whose fields are the flags.
        words: flags with their values; hyphens and underscores in names are alike, and so are ``--flag value`` and
            ``--flag=value``. A flag for true is negated by ``no-`` before its last name. Where a dict takes any key,
            ``--dict.key value`` sets one, its value written as in YAML, several of them a list.
        parser: the command's own options, among which the nearest name is looked for too.
        fixed: top-level fields that are not settable.
        elsewhere: what there is to say of a flag that other configs have and this one lacks.

    Raises:
        UserError: a flag does not exist or is given twice, or its value is not of the field's type.
    """
    known = {flag.name: flag for flag in flags_of(config) if flag.path[0] not in fixed}
    negations = {_negated(flag): flag for flag in known.values() if flag.hint is bool}
    changes: dict[str, Any] = {}
    seen = set()
    for name, values in _grouped(words, parser):
        flag = known.get(name) or negations.get(name) or _of_any_key(name, known)
        if flag is None:
            if said := elsewhere(name):
                raise UserError(said)
            raise parser.unknown(name, known)
        # A whole dict and one of its keys are not put together: which of them counts would be a guess.
        if flag.path in seen or any(flag.path[:-1] == other or other[:-1] == flag.path for other in seen):
            raise UserError(f"{name} is given twice")
        seen.add(flag.path)
        if name in negations:
            if values:
                raise UserError(f"{name} takes no value, not {' '.join(values)!r}")
            value = False
        else:
            value = _value(flag, values)
        inner = changes
        for key in flag.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[flag.path[-1]] = value
    return changes


def _of_any_key(name: str, known: Mapping[str, Flag]) -> Flag | None:
    """Return the flag for a key of a dict that takes any: a name as Python has them, so hyphens are underscores."""
    dictionary, _, key = name.rpartition(".")
    whole_dict = known.get(dictionary)
    if whole_dict is None or not key or not takes_any_key(whole_dict.hint):
        return None
    return Flag((*whole_dict.path, key.replace("-", "_")), Any)


def _negated(flag: Flag) -> str:
    *groups, last = flag.name.removeprefix("--").split(".")
    return "--" + ".".join([*groups, f"no-{last}"])


def _grouped(words: Sequence[str], parser: Parser) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words up to the next one."""
    name, values = None, []
    for word in words:
        if word.startswith("--"):
            if name is not None:
                yield name, values
            name, equals, value = hyphenated(word).partition("=")
            values = [value] if equals else []
        elif name is None:
            raise parser.unknown(word)
        else:
            values.append(word)
    if name is not None:
        yield name, values


def _value(flag: Flag, words: list[str]) -> Any:
    """Return the words after a flag as plain data of the type that its field declares."""
    if flag.hint in (bool, Any) and not words:
        return True
    try:
        items = _items(flag.hint, len(words))
        if items is not None:
            return [_one(item, word) for item, word in zip(items, words, strict=True)]
        (word,) = words
        return _one(flag.hint, word)
    except ValueError:
        given = " ".join(words) or "nothing"
        raise UserError(f"{flag.name}: expected {_described(flag.hint)}, not {given!r}") from None


def _items(hint: Any, count: int) -> list[Any] | None:
    """Return the types of the items of a tuple or list of ``count`` items, or None for another type."""
    origin, members = get_origin(hint), get_args(hint)
    if origin is list or (origin is tuple and members[-1] is Ellipsis):
        return [members[0]] * count
    if hint is Any and count > 1:
        return [Any] * count
    return list(members) if origin is tuple else None


def _one(hint: Any, word: str) -> Any:
    """Return one word as a value of a type.

    Raises:
        ValueError: it is none.
    """
    if get_origin(hint) in (Union, types.UnionType):
        if type(None) in get_args(hint) and word.lower() in ("none", "null"):
            return None
        for member in get_args(hint):
            try:
                return _one(member, word)
            except ValueError:
                continue
        raise ValueError(word)
    if get_origin(hint) is Literal:
        return _choice({str(choice): choice for choice in get_args(hint)}, word)
    if hint is bool:
        return _choice({"true": True, "false": False}, word.lower())
    if hint is int:
        return whole(word)
    if hint is float:
        return float(word)
    if hint is str:
        return word
    return parse_yaml(word)  # whatever else a field holds is checked against its type with the whole config


def _choice(choices: dict[str, Any], word: str) -> Any:
    if word not in choices:
        raise ValueError(word)
    return choices[word]


def _described(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Any: "a value"}
    origin, members = get_origin(hint), get_args(hint)
    if origin is list or (origin is tuple and members[-1] is Ellipsis):
        return f"any number of values, each {_described(members[0])}"
    if origin is tuple:
        return f"{len(members)} values, each {_described(members[0])}"
    if origin is Literal:
        return " or ".join(map(repr, members))
    if origin in (Union, types.UnionType):
        return " or ".join(_described(member) for member in members)
    return "none" if hint is type(None) else names.get(hint, getattr(hint, "__name__", str(hint)))


def help_of(config: Any, command: str) -> None:
    """Print every flag of a config with its meaning and default."""
    import tyro

    with contextlib.suppress(SystemExit):
        tyro.cli(
            type(config), default=_shown(config), args=["--help"], prog=command, description="Fields of the config:"
        )


def _shown(config: Any) -> Any:
    """Return a config with a NAME in each empty dict that takes any key, which would not be shown else."""
    hints, changes = get_type_hints(type(config)), {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            changes[field.name] = _shown(value)
        elif value == {} and takes_any_key(hints[field.name]):
            changes[field.name] = {"NAME": "none"}
    return replace(config, **changes)
