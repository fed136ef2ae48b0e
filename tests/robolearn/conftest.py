"""A run of two iterations on the quadruped, and its export."""

from pathlib import Path

import pytest

from robolearn import exporting
from robolearn import run as runs
from robolearn.training import default_config, train


@pytest.fixture(scope="session")
def go2_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the run; tests must not change it."""
    config = default_config("Go2-Velocity-Flat", num_envs=16, steps=2 * 24 * 16, threads=1)
    run = runs.create(tmp_path_factory.mktemp("runs"), config.task, config.algo, config, config.seed, config.device)
    train(config, run)
    return run.path


@pytest.fixture(scope="session")
def go2_onnx(go2_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported file; tests must not change it."""
    return exporting.export(go2_run, tmp_path_factory.mktemp("export") / "policy.onnx")
