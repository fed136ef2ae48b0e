"""The run directory."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from robolearn import checkpoint, run
from robolearn.config import from_dict, load_yaml
from sim.errors import UserError


@dataclass
class Config:
    rate: float = 0.5


def make(root: Path, task: str = "CartPole-Balance", algorithm: str = "ppo") -> run.Run:
    return run.create(root, task, algorithm, Config(rate=0.25), seed=3, device="cpu")


def test_a_run_holds_its_config_and_where_it_ran(tmp_path: Path):
    made = make(tmp_path)
    assert made.path.parent == tmp_path / "CartPole-Balance"
    assert made.path.name.endswith("-ppo")
    assert from_dict(Config, load_yaml(made.config)) == Config(rate=0.25)
    about = json.loads(made.environment.read_text())
    assert about["seed"] == 3
    assert about["device"] == "cpu"
    assert about["versions"]["torch"] == torch.__version__
    assert set(about) == {"started", "command", "seed", "device", "platform", "cpus", "python", "versions", "git"}


def test_runs_of_one_second_have_names_in_order(tmp_path: Path):
    names = [make(tmp_path).path.name for _ in range(5)]
    assert len(set(names)) == 5
    assert sorted(names) == names


def test_the_commit_is_that_of_the_code_not_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = run.environment(0, "cpu")["git"]
    monkeypatch.chdir(tmp_path)
    assert run.environment(0, "cpu")["git"] == here
    assert run._git(tmp_path / "untracked.py") is None


def test_a_task_of_a_file_stays_one_folder_deep(tmp_path: Path):
    made = make(tmp_path, task="my/tasks.py:Hop")
    assert made.path.parent == tmp_path / "my_tasks.py_Hop"


def test_open_takes_a_run_or_one_of_its_checkpoints(tmp_path: Path):
    made = make(tmp_path)
    first = checkpoint.save_numbered(made.checkpoints, 1, {"iteration": 1})
    second = checkpoint.save_numbered(made.checkpoints, 2, {"iteration": 2})
    assert run.open(made.path).load() == (second, {"iteration": 2})
    opened = run.open(str(first))
    assert opened.path == made.path
    assert opened.load() == (first, {"iteration": 1})


def test_a_folder_of_runs_stands_for_its_newest(tmp_path: Path):
    first, second = make(tmp_path), make(tmp_path)
    checkpoint.save_numbered(first.checkpoints, 1, {})
    assert run.open(first.path.parent).path == first.path
    checkpoint.save_numbered(second.checkpoints, 1, {})
    assert run.open(first.path.parent).path == run.open(tmp_path).path == second.path


def test_open_says_what_is_wrong(tmp_path: Path):
    made = make(tmp_path)
    (tmp_path / "loose.pt").write_bytes(b"")
    for path, error in [
        (tmp_path / "none", "there is no run or checkpoint"),
        (made.path, "has no checkpoint"),
        (made.config, "is not a checkpoint in a run directory"),
        (tmp_path / "loose.pt", "is not a checkpoint in a run directory"),
        (made.path.parent, "no run with a checkpoint below"),
        (made.checkpoints, "is not a run directory: it has no config.yaml"),
    ]:
        with pytest.raises(UserError) as caught:
            run.open(path)
        assert error in str(caught.value)
        assert "\n" not in str(caught.value)


def test_latest_is_the_newest_with_a_checkpoint(tmp_path: Path):
    with pytest.raises(UserError, match="no run with a checkpoint below"):
        run.latest(tmp_path)
    first, second, _without = make(tmp_path), make(tmp_path), make(tmp_path)
    other = make(tmp_path, task="Pendulum-Swingup")
    for made in (second, first):
        checkpoint.save_numbered(made.checkpoints, 1, {})
    assert run.latest(tmp_path).path == second.path
    with pytest.raises(UserError, match="no run of Pendulum-Swingup"):
        run.latest(tmp_path, "Pendulum-Swingup")
    checkpoint.save_numbered(other.checkpoints, 1, {})
    assert run.latest(tmp_path, "CartPole-Balance").path == second.path


def test_a_place_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write a run into"):
        make(tmp_path / "file")


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path):
    made = make(tmp_path)
    refused = f"^{made.path} is being trained by process {os.getpid()}$"
    with made.locked(), pytest.raises(UserError, match=refused), run.Run(made.path).locked():
        raise AssertionError("locked twice")
    with made.locked():
        assert (made.path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_run_without_a_checkpoint_is_discarded(tmp_path: Path):
    first, second = make(tmp_path), make(tmp_path)
    checkpoint.save_numbered(first.checkpoints, 0, {})
    assert second.discard_if_empty()
    assert not second.path.exists()
    assert not first.discard_if_empty()
    assert first.load() == (checkpoint.files(first.checkpoints)[0], {})


def test_an_interrupt_while_a_run_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(seed: int, device: str):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "environment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
