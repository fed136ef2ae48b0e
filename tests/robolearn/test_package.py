"""`import robolearn` works on a robot's computer, and among packages of the same names."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import robolearn
from sim.errors import UserError

ROOT = Path(__file__).parents[2]


def python(program: str, *, first: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program with a folder, and then the checkout, in front of everything on sys.path."""
    start = f"import sys; sys.path[:0] = {[str(first), str(ROOT)]!r}\n"
    command = [sys.executable, "-c", start + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=first)


def test_importing_it_loads_nothing_heavy():
    done = python("import robolearn; print({'torch', 'mujoco', 'numpy', 'onnxruntime'} & set(sys.modules))")
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("mujoco", "make('CartPole-Balance')"),
        ("torch", "load('runs/x')"),
        ("onnx", "export('runs/x')"),
    ],
)
def test_a_missing_extra_is_answered_with_the_command_that_installs_it(package: str, call: str):
    block = f"sys.modules[{package!r}] = None\n"
    program = f"import robolearn\ntry:\n    robolearn.{call}\nexcept Exception as e:\n    print(type(e).__name__, e)"
    done = python(block + program)
    function = call.partition("(")[0]
    expected = f'UserError robolearn.{function} needs {package}; pip install "robolearn[train]"\n'
    assert (done.stdout, done.stderr) == (expected, "")


@pytest.mark.parametrize("name", ["tasks", "sim", "deploy"])
@pytest.mark.parametrize("form", ["module", "package"])
def test_a_package_of_the_same_name_is_named(tmp_path: Path, name: str, form: str):
    file = tmp_path / f"{name}.py" if form == "module" else tmp_path / name / "__init__.py"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    done = python("import robolearn", first=tmp_path)
    assert done.returncode == 1
    assert f"needs its own package {name!r}, and Python finds {file} first" in done.stderr.splitlines()[-1]


def test_a_folder_that_is_no_package_shadows_nothing(tmp_path: Path):
    (tmp_path / "tasks").mkdir()
    assert python("import robolearn", first=tmp_path).stderr == ""


def test_the_version_is_the_installed_one():
    assert robolearn.__version__ == version("robolearn")


def test_make_changes_the_tasks_config_and_names_mistakes():
    env = robolearn.make("Go2-Velocity-Flat", num_envs=2, seed=1, weights={"torque": -1e-3}, episode_s=3.0)
    assert (env.num_envs, env.max_episode_length_s, env.cfg.weights["torque"]) == (2, 3.0, -1e-3)
    assert env.cfg.weights["gait"] == 0.5
    with pytest.raises(UserError, match="did you mean 'Go2-Velocity-Flat'"):
        robolearn.make("Go2-Velocty-Flat")
    with pytest.raises(UserError, match="did you mean 'episode_s'"):
        robolearn.make("Go2-Velocity-Flat", episode=3.0)
    with pytest.raises(UserError, match="backend"):
        robolearn.make("Go2-Velocity-Flat", sim="mujco")
    with pytest.raises(UserError, match="num_envs must be at least 1"):
        robolearn.make("Go2-Velocity-Flat", num_envs=0)
