"""Checking of the contract's sections: every value has the declared type, and no number is infinite or undefined."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union

import numpy as np

from deploy.errors import ContractError

SectionT = TypeVar("SectionT", bound="Section")


class Section:
    """A frozen dataclass whose fields are held to their annotations when it is made.

    Whole numbers given for a float become floats and lists become tuples, so that two equal sections serialise to the
    same text.

    Raises:
        ContractError: a value that its field's type does not allow, named by section and field.
    """

    def __post_init__(self) -> None:
        for name, annotation in _annotations(type(self)).items():
            where = f"{type(self).__name__}.{name}"
            object.__setattr__(self, name, _conform(getattr(self, name), annotation, where))


def build(section: type[SectionT], data: Any, where: str = "") -> SectionT:
    """Return the section that a decoded JSON object describes.

    Raises:
        ContractError: a missing, unknown or ill-typed field, named by its path from the top of the document.
    """
    if not isinstance(data, Mapping):
        raise ContractError(f"policy contract: {where or 'the document'} must be an object, not {_shown(data)}")
    annotations = _annotations(section)
    data = {**_later(section), **data}
    path = f"{where}." if where else ""
    for name in data:
        if name not in annotations:
            raise ContractError(f"policy contract: unknown field {path}{name}; was it written by a newer version?")
    for name in annotations:
        if name not in data:
            raise ContractError(f"policy contract: field {path}{name} is missing")
    return section(**{name: _conform(data[name], kind, path + name) for name, kind in annotations.items()})


def plain(value: Any) -> Any:
    """Return a section as the dicts, lists and scalars that JSON knows."""
    if isinstance(value, Section):
        return {name: plain(getattr(value, name)) for name in _annotations(type(value))}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def added(default: Any) -> Any:
    """Return a field that documents of an earlier minor version lack; they are read as if it held its default."""
    return dataclasses.field(default=default, metadata={"added": True})


@functools.cache
def _later(section: type) -> Mapping[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(section) if "added" in field.metadata}


@functools.cache
def _annotations(section: type) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def _conform(value: Any, annotation: Any, where: str) -> Any:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (annotation,) = (kind for kind in arguments if kind is not type(None))
        return _conform(value, annotation, where)
    if origin is Literal:
        if any(type(value) is type(allowed) and value == allowed for allowed in arguments):
            return value
        raise _wrong(where, "one of " + ", ".join(repr(a) for a in arguments), value)
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise _wrong(where, "a list", value)
        if arguments[-1] is Ellipsis:
            return tuple(_conform(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise _wrong(where, f"a list of {len(arguments)} values", value)
        pairs = enumerate(zip(value, arguments, strict=True))
        return tuple(_conform(item, kind, f"{where}[{i}]") for i, (item, kind) in pairs)
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(where, "an object", value)
        return {key: _conform(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if issubclass(annotation, Section):
        return value if isinstance(value, annotation) else build(annotation, value, where)
    return _scalar(value, annotation, where)


def _scalar(value: Any, kind: type, where: str) -> Any:
    flag = isinstance(value, (bool, np.bool_))
    if kind is float and isinstance(value, Real) and not flag:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise _wrong(where, "a finite number", value)
    if kind is int and isinstance(value, Integral) and not flag:
        return int(value)
    if kind is bool and flag:
        return bool(value)
    if kind is str and isinstance(value, str):
        return value
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    raise _wrong(where, names[kind], value)


def _wrong(where: str, wanted: str, value: Any) -> ContractError:
    return ContractError(f"policy contract: {where} must be {wanted}, not {_shown(value)}")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
