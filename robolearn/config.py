"""Configs are dataclasses: to plain data and back, to YAML and back, with every mistake named by its field."""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from sim.errors import UserError, unknown

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a dataclass as dicts, lists, strings and numbers, which ``from_dict`` turns back into an equal one."""
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config) if f.init}


def from_dict(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Build a config of class ``cls`` from plain data, e.g. what ``load_yaml`` returned.

    A field that is left out keeps its default, and so does a key left out of a dict whose default names its keys
    (reward weights, noise amplitudes): such a dict takes no other key.

    Args:
        where: what was being read, e.g. a file name, for the error.

    Raises:
        UserError: an unknown or missing field, or a value of the wrong type or range; names the field.
    """
    return _build(cls, data, "", where, base=None)


def updated(config: T, data: Mapping[str, Any], where: str = "") -> T:
    """Return a copy of ``config`` with the given fields replaced, under the rules of ``from_dict``.

    A nested config keeps the class it has in ``config``, which may be a subclass of what its field declares. A dict
    that takes any key keeps those that are not named.

    Raises:
        UserError: as ``from_dict``.
    """
    return _build(type(config), data, "", where, base=config)


def takes_any_key(hint: Any) -> bool:
    """Return whether a field's type is a dict of whatever: its keys are somebody else's to know."""
    return get_origin(hint) is dict and get_args(hint)[1] is Any


def parse_yaml(text: str) -> Any:
    """Return a text as plain data, under the rules of ``load_yaml``.

    Raises:
        ValueError: it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as e:
        raise ValueError(text) from e


def load_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML file as plain data.

    Raises:
        UserError: the file cannot be read, is not YAML, repeats a key, or holds no mapping.
    """
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as e:
        line = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise UserError(f"{path}{line}: not readable as YAML: {e.problem or e.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: not readable as YAML: {' '.join(str(e).split())}") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of fields, not {_show(data)}")
    return data


def save_yaml(path: Path | str, config: Any) -> None:
    """Write a config dataclass, every field of it, as YAML that loads back equal; whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    text = yaml.dump(to_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    partial = Path(f"{path}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _build(cls: type[T], data: Any, path: str, where: str, base: T | None) -> T:
    """Build ``cls`` from ``data``; fields left out come from ``base``, else from the class."""
    if not isinstance(data, Mapping):
        raise UserError(_at(where, path, f"expected the fields of {cls.__name__}, not {_show(data)}"))
    hints = get_type_hints(cls)
    settable = {f.name: f for f in fields(cls) if f.init}  # pyright: ignore[reportArgumentType]
    for name in data:
        if name not in settable:
            raise unknown(f"{path} field".strip(), str(name), settable, where)
    values = {}
    for name, field in settable.items():
        default = _default(field) if base is None else getattr(base, name)
        dotted = f"{path}.{name}" if path else name
        if name in data:
            values[name] = _value(hints[name], data[name], dotted, where, default)
        elif default is MISSING:
            raise UserError(_at(where, dotted, f"missing; expected {_type_name(hints[name])}"))
        else:
            values[name] = copy.deepcopy(default)
    try:
        return cls(**values)
    except (UserError, ValueError) as e:  # what the class itself checks
        raise UserError(_at(where, path, str(e))) from None


def _value(hint: Any, value: Any, path: str, where: str, default: Any) -> Any:
    """Return ``value`` as the type a field declares."""
    if is_dataclass(default) and not isinstance(default, type) and isinstance(value, Mapping):
        return _build(type(default), value, path, where, base=default)
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    nested = [member for member in members if isinstance(member, type) and is_dataclass(member)]
    if len(nested) == 1 and isinstance(value, Mapping):
        return _build(nested[0], value, path, where, base=None)
    origin, items = get_origin(hint), [t for t in get_args(hint) if t is not Ellipsis]
    if origin in (tuple, list) and len(items) == 1 and is_dataclass(items[0]) and isinstance(value, list | tuple):
        return origin(_value(items[0], item, f"{path}.{i}", where, MISSING) for i, item in enumerate(value))
    if isinstance(default, dict) and default and isinstance(value, Mapping):
        for key in value:
            if key not in default and not takes_any_key(hint):
                raise unknown(f"{path} field", str(key), map(str, default), where)
        return {**default, **_validate(hint, value, path, where)}
    return _validate(hint, value, path, where)


def _validate(hint: Any, value: Any, path: str, where: str) -> Any:
    # JSON's strict rules are the ones wanted: a list may become a tuple and 1 a float, but "1" or true no number.
    try:
        text = json.dumps(_plain(value))
    except (TypeError, ValueError):
        raise UserError(_at(where, path, f"expected {_type_name(hint)}, not {_show(value)}")) from None
    config = None if isinstance(hint, type) and is_dataclass(hint) else ConfigDict(extra="forbid")
    try:
        return TypeAdapter(hint, config=config).validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        inner, bad = path, json.loads(text)
        for step in first["loc"]:
            if isinstance(bad, dict) and step in bad:
                bad = bad[str(step)]
            elif isinstance(bad, list) and isinstance(step, int) and step < len(bad):
                bad = bad[step]
            else:
                break  # a member of a union, or an item that is not there
            inner = f"{inner}.{step}"
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(_at(where, inner, f"expected {_type_name(hint)}, not {_show(bad)} ({reason})")) from None


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _at(where: str, path: str, text: str) -> str:
    return ": ".join(part for part in (where, path, text) if part)


def _show(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the numbers of YAML 1.2 and no repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, quoting the texts that ``_Loader`` would read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_list(self, data: list[Any]) -> yaml.Node:
        """Keep a short list of scalars on one line."""
        scalars = not any(isinstance(item, list | dict) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=scalars)


_Dumper.add_representer(list, _Dumper.represent_list)


# PyYAML follows YAML 1.1, which reads 1e-3 as text; whoever writes a learning rate so means the number.
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
