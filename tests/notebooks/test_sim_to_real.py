"""The notebook is the one its text says, and runs from top to bottom on a small policy."""

import os
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from robolearn import exporting
from robolearn import run as runs
from robolearn.training import default_config, train

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NOTEBOOK = NOTEBOOKS / "sim_to_real.ipynb"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    config = default_config("Go2-Velocity-Flat", num_envs=16, steps=2 * 24 * 16, threads=1)
    run = runs.create(folder, config.task, config.algo, config, config.seed, config.device)
    train(config, run)
    return exporting.export(run.path, folder / "policy.onnx")


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_pair_is_in_sync(notebook: Path):
    ours, text = nbformat.read(notebook, as_version=4), jupytext.read(notebook.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in ours.cells] == [(c.cell_type, c.source) for c in text.cells]
    assert [cell.metadata.get("tags") for cell in ours.cells] == [cell.metadata.get("tags") for cell in text.cells]


def test_it_runs_from_top_to_bottom(policy: Path, monkeypatch: pytest.MonkeyPatch):
    settings = {"POLICY": policy, "WORLDS": 4, "SECONDS": 0.4, "TRIALS": 3}
    for name, value in settings.items():
        monkeypatch.setenv(f"ROBOLEARN_{name}", str(value))
    path = [str(NOTEBOOKS.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4
    words = "\n".join(
        str(output.get("data", {}).get("text/markdown", "")) + output.get("text", "") for output in outputs
    )
    for sentence in (
        "fits that task as it stands here",
        "FR_hip_joint",
        "256 steps replayed",
        "The run **finished** after",
        "| control delay |",
        "| foot friction |",
        "| payload |",
        "| sensor noise |",
        "**In one line.** control delay: ",
    ):
        assert sentence in words
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
