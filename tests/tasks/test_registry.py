"""Finding tasks by name, in a user's own file and in installed packages; changing their configs."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from tasks import registry
from tasks.cartpole import CartPoleSwingup
from tasks.velocity import Velocity

OWN = '''
from dataclasses import dataclass
from tasks.cartpole import CartPoleConfig, CartPoleSwingup

@dataclass(kw_only=True)
class MineConfig(CartPoleConfig):
    extra: float = {extra}

class Mine(CartPoleSwingup):
    """A user's own."""
    Config = MineConfig
'''


def own_file(folder: Path, extra: float = 1.0) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(OWN.format(extra=extra))
    return str(folder / "mine.py")


def message(call) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(registry._BUNDLED))
def test_every_bundled_task_makes_a_task_of_its_own_config(name: str):
    task = registry.make_task(name)
    assert isinstance(task.config, registry.task_class(name).Config)
    assert name in registry.names()


def test_configs_are_fresh_each_time():
    registry.task_config("Go2-Velocity-Flat").weights["track_yaw"] = 100.0
    assert registry.task_config("Go2-Velocity-Flat").weights["track_yaw"] != 100.0


def test_an_unknown_task_is_answered_with_the_nearest():
    assert message(lambda: registry.make_task("Go2-Velocty-Flat")) == (
        "unknown task 'Go2-Velocty-Flat'; did you mean 'Go2-Velocity-Flat'?"
    )


# Overrides


def test_overrides_change_only_what_they_name():
    task = registry.make_task("CartPole-Swingup", weights={"effort": -5.0}, episode_s=3.0)
    default = registry.task_config("CartPole-Swingup")
    assert task.config.weights == {**default.weights, "effort": -5.0}
    assert (task.config.episode_s, task.config.control_dt) == (3.0, default.control_dt)
    assert list(task.config.weights) == list(default.weights)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"wieghts": {}}, "unknown config field 'wieghts'; did you mean 'weights'?"),
        ({"weights": {"upriht": 1.0}}, "unknown entry 'upriht' in weights; did you mean 'upright'?"),
        ({"control_dt": 0.025}, "control_dt 0.025 s is not a multiple of physics_dt 0.01 s"),
    ],
)
def test_overrides_are_checked(overrides: dict, text: str):
    assert message(lambda: registry.make_task("CartPole-Swingup", **overrides)) == text


# A user's own file


def test_a_class_in_a_file_is_a_task(tmp_path: Path):
    task: Any = registry.make_task(f"{own_file(tmp_path)}:Mine", extra=2.0)
    assert task.config.extra == 2.0
    assert isinstance(task, CartPoleSwingup)
    assert registry.task_class(f"{own_file(tmp_path)}:Mine") is type(task)  # read once


def extra(name: str) -> Any:
    config: Any = registry.task_config(name)
    return config.extra


def test_files_of_the_same_name_are_kept_apart(tmp_path: Path):
    first, second = own_file(tmp_path / "a", 1.0), own_file(tmp_path / "b", 2.0)
    assert extra(f"{first}:Mine") == 1.0
    assert extra(f"{second}:Mine") == 2.0


def test_mistakes_in_a_file_are_one_line(tmp_path: Path):
    good = own_file(tmp_path)
    broken, abstract = tmp_path / "broken.py", tmp_path / "abstract.py"
    broken.write_text("import nonexistent_package_of_mine")
    abstract.write_text("from tasks.task import Task\nclass NoConfig(Task):\n    pass\n")
    assert (
        message(lambda: registry.make_task(f"{good}:Mnie"))
        == f"unknown task class 'Mnie' in {good}; did you mean 'Mine'?"
    )
    assert message(lambda: registry.make_task("nowhere.py:Mine")).startswith("no task file nowhere.py in /")
    assert message(lambda: registry.make_task(str(good))) == f"{good} names no class; write {good}:CLASS"
    assert message(lambda: registry.make_task(f"{broken}:Mine")) == (
        f"{broken} fails to import: ModuleNotFoundError: No module named 'nonexistent_package_of_mine'"
    )
    assert message(lambda: registry.make_task(f"{abstract}:NoConfig")) == (
        f"{abstract}:NoConfig has no Config: name its config class in it, e.g. Config = TaskConfig"
    )
    broken.write_text(OWN.format(extra=1.0))  # mended, and read anew
    assert extra(f"{broken}:Mine") == 1.0


# Installed packages


def installed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("Their-Task", value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.ENTRY_POINT_GROUP else [])


def test_an_installed_package_adds_its_tasks(monkeypatch: pytest.MonkeyPatch):
    installed(monkeypatch, "tasks.velocity:Velocity")
    assert "Their-Task" in registry.names()
    assert registry.task_class("Their-Task") is Velocity
    assert "did you mean 'Their-Task'?" in message(lambda: registry.task_class("Their-Tsk"))


@pytest.mark.parametrize("value", ["nonexistent_package:Task", "tasks.velocity:Velcity"])
def test_an_installed_task_that_does_not_load_is_one_line(monkeypatch: pytest.MonkeyPatch, value: str):
    installed(monkeypatch, value)
    assert message(lambda: registry.make_task("Their-Task")).startswith(f"task Their-Task ({value}) fails to load: ")
