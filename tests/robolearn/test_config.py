"""Configs survive YAML, and every mistake names its field."""

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from robolearn.config import from_dict, load_yaml, save_yaml, to_dict, updated
from sim.errors import UserError


class Colour(Enum):
    RED = "red"


@dataclass(kw_only=True)
class Range:
    x: tuple[float, float] = (-1.0, 1.0)
    y: tuple[float, float] = (-0.5, 0.5)


@dataclass(kw_only=True)
class Part:
    size: int


@dataclass(kw_only=True)
class Base:
    rate: float = 3e-4
    count: int = 7
    on: bool = True
    kind: Literal["fast", "slow"] = "fast"
    name: str = "a: b #c"
    note: str | None = None
    limit: float = math.inf
    folder: Path = Path("runs")
    colour: Colour = Colour.RED
    layers: tuple[int, ...] = (64, 32)
    command: Range = field(default_factory=Range)
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    weights: dict[str, float] = field(default_factory=lambda: {"track": 1.5, "tilt": -1.0})
    free: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UserError(f"count must not be negative, not {self.count}")


@dataclass(kw_only=True)
class Special(Base):
    gain: float = 0.1 + 0.2


@dataclass(kw_only=True)
class Whole:
    task: Base = field(default_factory=Base)
    steps: int = 1


def test_yaml_loads_back_equal(tmp_path: Path):
    config = Whole(
        task=Special(
            rate=1 / 3, name="1e-3", note="null", part=Part(size=3), parts=(Part(size=1), Part(size=2)), free={"a": 1}
        )
    )
    save_yaml(tmp_path / "c.yaml", config)
    loaded = updated(Whole(task=Special()), load_yaml(tmp_path / "c.yaml"))
    assert loaded == config
    assert isinstance(loaded.task, Special)
    assert isinstance(loaded.task.layers, tuple)
    assert isinstance(loaded.task.parts[1], Part)
    assert list(to_dict(config)["task"]) == [*Base.__dataclass_fields__, "gain"]


def test_what_is_left_out_keeps_its_default():
    config = from_dict(Base, {"weights": {"tilt": 0}, "command": {"y": [0, 1]}})
    assert config.weights == {"track": 1.5, "tilt": 0.0}
    assert config.command == Range(y=(0.0, 1.0))
    assert config.rate == 3e-4


def test_an_update_leaves_the_original_alone():
    config = Base()
    changed = updated(config, {"weights": {"track": 9}, "folder": Path("a"), "layers": (1, 2)})
    assert (changed.folder, changed.layers, changed.weights["track"]) == (Path("a"), (1, 2), 9.0)
    changed.weights["tilt"] = 5.0
    changed.command.x = (0.0, 0.0)
    assert config == Base()


@pytest.mark.parametrize("text", ["1e-3", "1E-3", ".1e-2", "1.0e-03", "0.001"])
def test_numbers_as_people_write_them(tmp_path: Path, text: str):
    (tmp_path / "c.yaml").write_text(f"rate: {text}")
    assert from_dict(Base, load_yaml(tmp_path / "c.yaml")).rate == 0.001


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"rate": "fast"}, "c.yaml: rate: expected float, not 'fast' (input should be a valid number)"),
        ({"rate": "1.0"}, "c.yaml: rate: expected float, not '1.0' (input should be a valid number)"),
        ({"rate": True}, "c.yaml: rate: expected float, not True (input should be a valid number)"),
        ({"rate": None}, "c.yaml: rate: expected float, not None (input should be a valid number)"),
        ({"count": 1.5}, "c.yaml: count: expected int, not 1.5 (input should be a valid integer)"),
        ({"on": 1}, "c.yaml: on: expected bool, not 1 (input should be a valid boolean)"),
        ({"kind": "quick"}, "c.yaml: kind: expected Literal['fast', 'slow'], not 'quick'"),
        ({"note": 3}, "c.yaml: note: expected str | None, not 3 (input should be a valid string)"),
        ({"layers": 64}, "c.yaml: layers: expected tuple[int, ...], not 64"),
        ({"layers": [64, "b"]}, "c.yaml: layers.1: expected tuple[int, ...], not 'b'"),
        ({"command": {"x": [0, "b"]}}, "c.yaml: command.x.1: expected tuple[float, float], not 'b'"),
        ({"command": {"x": [0]}}, "c.yaml: command.x: expected tuple[float, float], not [0]"),
        ({"command": 3}, "c.yaml: command: expected Range, not 3"),
        ({"weights": {"tilt": "x"}}, "c.yaml: weights.tilt: expected dict[str, float], not 'x'"),
        ({"weights": {"tild": 1}}, "unknown weights field 'tild' in c.yaml; did you mean 'tilt'?"),
        ({"weigths": {}}, "unknown field 'weigths' in c.yaml; did you mean 'weights'?"),
        ({"command": {"z": 1}}, "unknown command field 'z' in c.yaml; known: x, y"),
        ({"part": {}}, "c.yaml: part.size: missing; expected int"),
        ({"parts": [{"size": 1}, {"sise": 1}]}, "unknown parts.1 field 'sise' in c.yaml; did you mean 'size'?"),
        ({"count": -1}, "c.yaml: count must not be negative, not -1"),
        ({"rate": object}, "c.yaml: rate: expected float, not <class 'object'>"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(data: dict, error: str):
    with pytest.raises(UserError) as caught:
        from_dict(Base, data, "c.yaml")
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError) as nested:
        from_dict(Whole, {"task": data}, "c.yaml")
    assert "task" in str(nested.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rate: 1\nrate: 2\n", "c.yaml, line 2: not readable as YAML: 'rate' is given twice"),
        ("a: [1\n", "c.yaml, line 2: not readable as YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "c.yaml, line 1: not readable as YAML: could not determine"),
        ("a: \x00\n", "c.yaml: not readable as YAML"),
        ("- 1\n", "c.yaml: expected a mapping of fields, not [1]"),
        ("", "c.yaml: expected a mapping of fields, not None"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, error: str):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_yaml(tmp_path / "c.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/{error}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot read .*none\.yaml: No such file"):
        load_yaml(tmp_path / "none.yaml")
