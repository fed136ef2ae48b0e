"""The README, followed word for word by someone in a hurry: trainings are cut short, everything else is as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

SHORTER = {
    "train": "--steps 4096",
    "eval": "--episodes 4",
}
"""What is added to a command of the README for the test's sake."""


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def _commands() -> list[str]:
    lines = "\n".join(_blocks("bash")).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


def _robolearn(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "robolearn.cli", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `make demo` leaves it, with a policy that hardly trained, and one trained elsewhere."""
    folder = tmp_path_factory.mktemp("readme")
    train = "train Go2-Velocity-Flat --num-envs 16 --steps 384"
    for command in (train, "export runs/Go2-Velocity-Flat --output demo/policy.onnx"):
        (folder / "demo").mkdir(exist_ok=True)
        done = _robolearn(shlex.split(command), folder)
        assert done.returncode == 0, done.stderr
    # Made where Stable-Baselines3 is at home; untrained, it is imported like any other.
    theirs = "import stable_baselines3 as sb3; sb3.SAC('MlpPolicy', 'Pendulum-v1', buffer_size=1000).save('their_sac')"
    done = subprocess.run([sys.executable, "-c", theirs], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.timeout(900)  # a program is started for each of the commands
def test_every_command_works(folder: Path) -> None:
    for block in _blocks("python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (folder / name[1]).write_text(block, encoding="utf-8")
    commands = _commands()
    assert len(commands) >= 10
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "robolearn", command
        short = [] if "--resume" in words else shlex.split(SHORTER.get(words[0], ""))
        # The last of a flag given twice would have to win, so the README's own value gives way.
        for flag in short[::2]:
            if flag in words:
                place = words.index(flag)
                del words[place : place + 2]
        if words[0] == "train" and "--num-envs" not in words and "--resume" not in words:
            short += ["--num-envs", "16"]
        if "--resume" in words:
            words[words.index("--steps") + 1] = "8192"
        done = _robolearn([*words, *short], folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_notebook_lines_work(folder: Path) -> None:
    for block in _blocks("python"):
        if "import robolearn" in block:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, "-c", block], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr


def test_make_targets_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
    for name in re.findall(r"`(notebooks/[\w./]+)`", README):
        assert (ROOT / name).exists(), name


def test_every_task_is_in_the_table() -> None:
    from tasks.registry import names

    for name in names():
        assert f"`{name}`" in README, name
