"""Off-policy trainings as users run them: train, resume, evaluate, export."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.runtime import Policy
from robolearn import checkpoint, exporting
from robolearn import run as runs
from robolearn.cli import main
from robolearn.loading import load
from robolearn.training import TrainConfig, default_config, train
from sim import memory

TINY: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "warmup": 40, "iteration_steps": 20, "capacity": 1000}
ALGORITHMS = ("sac", "td3", "ddpg", "dsac", "fast_td3", "fast_sac", "mdpo_off", "pmoe", "aro_ddpg")


def _trained(folder: Path, config: TrainConfig) -> runs.Run:
    run = runs.create(folder, config.task, config.algo, config, config.seed, config.device)
    assert train(config, run).finished
    return run


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_interrupted_training_goes_on_bit_for_bit_and_its_policy_is_exported(tmp_path: Path, name: str) -> None:
    config = default_config(
        "Pendulum-Swingup", name, num_envs=2, steps=400, threads=1, checkpoint_every=5, algorithm=TINY
    )
    whole = _trained(tmp_path / "whole", config)
    half = _trained(tmp_path / "half", replace(config, steps=200))
    assert train(config, half, resume=True).steps == 400
    ours, theirs = (checkpoint.latest(run.checkpoints)[1] for run in (half, whole))
    assert ours["iteration"] == theirs["iteration"] == 10
    for part in ("policy", "value", "slow_value", "bonus", "replay"):
        for key, value in theirs["algorithm"][part].items():
            other = ours["algorithm"][part][key]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
    path = exporting.export(half.path, steps=200)
    observation = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    # Both are float32 through three layers.
    np.testing.assert_allclose(Policy(path).act(observation)[0], load(half.path).act(observation), rtol=0, atol=1e-5)


def test_a_replay_too_large_is_refused_before_there_is_a_run_and_never_for_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runs_of = f"--runs {tmp_path / 'runs'}"
    command = f"train Pendulum-Swingup --algo sac --algorithm.capacity 1_000_000_000_000 {runs_of}"
    assert main(command.split()) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("robolearn train: a replay of 1,000,000,000,000 transitions needs ")
    assert line.endswith("GB free; lower --algorithm.capacity")
    assert list((tmp_path / "runs").iterdir()) == []
    config = default_config("Pendulum-Swingup", "sac", num_envs=2, steps=40, threads=1, algorithm=TINY)
    run = _trained(tmp_path, config)
    monkeypatch.setattr(memory, "free_memory", lambda device: 30_000)  # room for a world, and for half of the replay
    assert load(run.path).act(np.zeros((1, 3), np.float32)).shape == (1, 1)
