"""Every command once on tiny settings, and every mistake answered by one line and the right exit status."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from robolearn import checkpoint
from robolearn.cli import main
from robolearn.cli.extras import EXTRAS
from sim.render import why_unavailable

ROOT = Path(__file__).parents[2]
TINY = (
    "--num-envs 4 --algorithm.horizon 8 --algorithm.epochs 1 --algorithm.minibatches 1 --algorithm.hidden 4 --threads 1"
)


def train(task: str, root: Path, more: str = "--steps 64") -> Path:
    """Train on tiny settings and return the run."""
    assert main(f"train {task} --runs {root} {TINY} {more}".split()) == 0
    return max(root.glob("*/*/"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CartPole-Balance; tests must not change it."""
    return train("CartPole-Balance", tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def onnx_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export; tests must not change it."""
    path = tmp_path_factory.mktemp("export") / "policy.onnx"
    assert main(["export", str(run), "--output", str(path)]) == 0
    return path


def robolearn(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the installed command in a process of its own."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "robolearn"), *command.split()], cwd=folder, capture_output=True, text=True
    )


# Done


def test_the_installed_command_trains_and_says_what_comes_next(tmp_path: Path):
    done = robolearn(f"train CartPole-Balance {TINY} --steps 64", tmp_path)
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("runs/CartPole-Balance/*/")
    place = made.relative_to(tmp_path)
    assert [line for line in done.stdout.splitlines() if line.startswith("robolearn ")] == [
        f"robolearn eval {place}",
        f"robolearn play {place}",
        f"robolearn export {place}",
    ]
    assert "iteration 2/2" in done.stderr


def test_on_a_robots_computer_numpy_and_onnxruntime_suffice(onnx_file: Path, tmp_path: Path):
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "onnxruntime"):
        if (installed / name).exists():
            (tmp_path / name).symlink_to(installed / name)
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
from robolearn.cli import main
print([main(line.split()) for line in sys.stdin])
"""
    commands = (
        "--help",
        "deploy --help",
        "list",
        "doctor",
        f"deploy {onnx_file} --robot sim",
        "train CartPole-Balance",
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 2, 2]", done.stderr
    assert "deploy               yes" in done.stdout
    assert done.stderr.count('pip install "robolearn[train]"') == len(done.stderr.splitlines()) == 2


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]):
    assert main(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {"Go2-Velocity-Flat", "HalfCheetah", "ppo", "go2", "g1", "panda", "mujoco"} <= set(words)


def test_doctor_says_what_works(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch                {torch.__version__}" in out
    assert "simulation           yes" in out


def test_eval_judges_a_run_and_its_export_alike(run: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]):
    results = []
    for source, written in ((run, run / "eval.json"), (onnx_file, onnx_file.with_suffix(".eval.json"))):
        assert main(["eval", str(source), "--episodes", "6", "--num-envs", "3"]) == 0
        assert str(written) in capsys.readouterr().out
        results.append(json.loads(written.read_text()))
    own, exported = results
    assert own["episodes"] == 6
    assert own["task"] == "CartPole-Balance"
    assert exported["return"] == pytest.approx(own["return"], rel=1e-3)
    assert exported["length_s"] == own["length_s"]


def test_eval_takes_changes_of_the_task(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "run")
    assert main(["eval", str(copy), "--episodes", "2", "--env.episode-s", "0.1"]) == 0
    result = json.loads((copy / "eval.json").read_text())
    assert result["changes"] == {"env": {"episode_s": 0.1}}
    assert result["length_s"] <= 0.1


@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_play_writes_a_video(run: Path, tmp_path: Path):
    assert main(["play", str(run), "--video", str(tmp_path / "a.mp4"), "--seconds", "0.2"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_play_says_why_it_cannot_render(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert main(["play", str(run), "--video", str(tmp_path / "a.mp4")]) == 1
    assert capsys.readouterr().err == "robolearn play: cannot render: rendering is switched off by MUJOCO_GL=disable\n"
    assert list(tmp_path.iterdir()) == []


def test_deploy_runs_the_exported_file(go2_onnx: Path, capsys: pytest.CaptureFixture[str]):
    assert main(f"deploy {go2_onnx} --robot sim --duration 2 --command 0.2 0 0".split()) == 0
    out = capsys.readouterr().out
    assert "100 at " in out  # 2 s at 50 Hz
    assert "inference" in out
    assert "linear_velocity_x" in out


@pytest.mark.parametrize("what", ["sim --steps 2", "learn"])
def test_bench_measures(what: str, capsys: pytest.CaptureFixture[str]):
    assert main(f"bench {what} --num-envs 4 --threads 1 --rounds 1".split()) == 0
    assert "Go2-Velocity-Flat, 4 worlds, 1 threads" in capsys.readouterr().out


def test_the_demo_leaves_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--steps", "96", "--num-envs", "4", "--episodes", "2"]) == 0
    made = {path.name for path in (tmp_path / "demo").iterdir()}
    assert made == {"Go2-Velocity-Flat", "policy.onnx", "policy.golden.npz", "eval.json", "learning_curve.png"}
    out = capsys.readouterr().out
    assert "no walk.mp4: cannot render: rendering is switched off by MUJOCO_GL=disable" in out
    result = json.loads((tmp_path / "demo" / "eval.json").read_text())
    assert {"velocity_error", "yaw_rate_error", "fell"} <= result.keys()
    assert f"{result['velocity_error']:.3f}" in out


def test_help_lists_every_field_of_the_task(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "Go2-Velocity-Flat", "--help"]) == 0
    out = capsys.readouterr().out
    for flag in ("--env.weights.track-velocity", "--env.command.x", "--algorithm.learning-rate", "--checkpoint-every"):
        assert flag in out


def test_every_package_of_an_extra_is_known_by_its_module():
    stated = [requirement.partition("; extra == ") for requirement in requires("robolearn") or []]
    packages = {m: {name.lower().replace("_", "-") for name in names} for m, names in packages_distributions().items()}
    for extra, modules in EXTRAS.items():
        required = {re.split("[=~><]", text)[0].lower() for text, _, of in stated if of.strip("\"'") == extra}
        assert required
        assert {module for module in modules if module not in packages} == set(), "install all extras for this test"
        assert required <= {name for module in modules for name in packages[module]}


# Wrong requests


def refused(command: str, capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """Return the one line on stderr of a command that fails with this exit status."""
    capsys.readouterr()
    assert main(command.split()) == status
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("train", "TASK comes first"),
        ("train CartPole-Balnce", "unknown task 'CartPole-Balnce'; did you mean 'CartPole-Balance'?"),
        ("train CartPole-Balance --algo ppp", "unknown algorithm 'ppp'; did you mean 'ppo'?"),
        ("train CartPole-Balance --sim mujco", "unknown backend 'mujco'; did you mean 'mujoco'?"),
        ("train CartPole-Balance --num-env 4", "unknown flag '--num-env'; did you mean '--num-envs'?"),
        ("train CartPole-Balance --num_envs 4.5", "--num-envs: expected a whole number, not '4.5'"),
        ("train CartPole-Balance --num-envs 0", "num_envs must be at least 1, not 0"),
        ("train CartPole-Balance --num-envs", "--num-envs: expected a whole number, not 'nothing'"),
        ("train CartPole-Balance --seed 99999999999999999999", "seed must be from 0 to 2^63 - 1"),
        ("train CartPole-Balance --seed -1", "seed must be from 0 to 2^63 - 1, not -1"),
        ("train CartPole-Balance --seed 1 --seed 2", "--seed is given twice"),
        ("train CartPole-Balance extra", "unexpected argument 'extra'"),
        ("train CartPole-Balance --algorithm.gama 1", "did you mean '--algorithm.gamma'?"),
        ("train CartPole-Balance --algorithm.gamma 2", "gamma must be between 0 and 1, not 2.0"),
        ("train CartPole-Balance --algorithm.learning-rate fast", "--algorithm.learning-rate: expected a number, not"),
        ("train CartPole-Balance --algorithm.hidden 64 x", "--algorithm.hidden: expected any number of values, each"),
        ("train CartPole-Balance --algorithm.surrogate clop", "unknown surrogate 'clop'; did you mean 'clip'?"),
        ("train CartPole-Balance --env.control-dt 0.003", "not a multiple of physics_dt"),
        ("train CartPole-Balance --device cuda", "runs on the CPU; use --device cpu, not cuda"),
        ("train Go2-Velocity-Flat --env.weights.tilted 1", "did you mean '--env.weights.tilt'?"),
        ("train Go2-Velocity-Flat --env.command.x 1", "--env.command.x: expected 2 values, each a number, not '1'"),
        ("train Go2-Velocity-Flat --env.command.x 1 -1", "command.x must be an ordered range"),
        ("train Go2-Velocity-Flat --env.robot go3", "unknown robot 'go3'; did you mean 'go2'?"),
        ("train Go2-Velocity-Flat --env.robot nowhere.xml", "nowhere.xml"),
        ("train CartPole-Balance --init nowhere", "there is no run or checkpoint nowhere"),
        ("train --resume nowhere", "there is no run or checkpoint nowhere"),
        ("train --resume a --init b", "give one of them"),
        ("eval", "a run or a policy comes first"),
        ("eval nowhere", "there is no run or checkpoint nowhere"),
        ("eval nowhere.onnx", "nowhere.onnx: cannot read the policy file"),
        ("eval nowhere --episodes 0", "expected a whole number of at least 1, not '0'"),
        ("play nowhere --viewer wbe", "invalid choice: 'wbe'"),
        ("play nowhere --video a.avi", "expected a file name that ends in .mp4"),
        ("play nowhere --port 99999", "expected a port"),
        ("export nowhere --output policy.pt", "expected a file name that ends in .onnx"),
        ("export nowhere", "there is no run or checkpoint nowhere"),
        ("deploy nowhere.onnx", "--robot"),
        ("deploy nowhere.onnx --robot sin", "unknown robot 'sin'; did you mean 'sim'?"),
        ("bench", "what"),
        ("bench sim CartPole-Balnce", "unknown task 'CartPole-Balnce'"),
        ("demo --step 3", "unknown flag '--step'; did you mean '--steps'?"),
    ],
)
def test_a_wrong_request_is_one_line(
    command: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    line = refused(command, capsys)
    assert expected in line
    assert line.startswith("robolearn")
    assert list(tmp_path.iterdir()) == []


TASK_FILE = """
from dataclasses import dataclass
from tasks.cartpole import CartPoleBalance
from tasks.task import terms

class Sensor(CartPoleBalance):
    def setup(self):
        super().setup()
        self.sim.sensor("angel")

@dataclass(kw_only=True)
class TermConfig(CartPoleBalance.Config):
    weights: dict[str, float] = terms(**CartPoleBalance.Config().weights, uprite=1.0)

class Term(CartPoleBalance):
    Config = TermConfig

class NotFinite(CartPoleBalance):
    def rewards(self):
        rewards = super().rewards()
        first = next(iter(rewards))
        if self.sim.time[-1] > 0.05:
            rewards[first] = rewards[first].clone()
            rewards[first][-1] = float("nan")
        return rewards
"""


def test_mistakes_of_a_users_own_task_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.py"
    file.write_text(TASK_FILE)
    more = f"--runs {tmp_path} {TINY}"
    assert "unknown sensor 'angel'" in refused(f"train {file}:Sensor {more}", capsys)
    assert "'uprite'" in refused(f"train {file}:Term {more}", capsys)
    assert "unknown task class 'Sensr'" in refused(f"train {file}:Sensr {more}", capsys)
    assert list(tmp_path.glob("*/*-ppo")) == []
    line = refused(f"train {file}:NotFinite {more}", capsys, status=1)
    assert "not finite" in line
    assert "world 3" in line
    assert "step" in line


def test_bad_checkpoints_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    copy = shutil.copytree(run, tmp_path / "run")
    newest = checkpoint.files(copy / "checkpoints")[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    for command in ("train --resume", "eval", "export"):
        assert f"{newest} is truncated or corrupt" in refused(f"{command} {newest}", capsys)

    payload = checkpoint.load(checkpoint.files(copy / "checkpoints")[0])
    torch.save({"format": checkpoint.FORMAT, "version": 99, "payload": payload}, newest)
    assert "format 99" in refused(f"train --resume {newest}", capsys)

    shutil.rmtree(copy / "checkpoints")
    assert "has no checkpoint" in refused(f"eval {copy}", capsys)

    other = train("CartPole-Swingup", tmp_path / "other")
    shutil.copytree(run / "checkpoints", other / "checkpoints", dirs_exist_ok=True)
    line = refused(f"train --resume {other}", capsys)
    assert "was trained with task 'CartPole-Balance', not 'CartPole-Swingup'" in line
    assert "CartPole-Balance" in refused(f"eval {other}", capsys)


def test_a_run_of_another_task_or_shape_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "trains task CartPole-Balance, not Ant" in refused(f"train Ant --resume {run}", capsys)
    line = refused(
        f"train Pendulum-Swingup --init {run} --runs {tmp_path / 'runs'} {TINY} --algorithm.hidden=9", capsys
    )
    assert "given twice" in line
    line = refused(f"train CartPole-Balance --init {run} --runs {tmp_path / 'runs'} --num-envs 4", capsys)
    assert "does not fit the networks" in line


def test_files_that_are_not_ours_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    noise, foreign = tmp_path / "noise.onnx", tmp_path / "foreign.onnx"
    noise.write_bytes(b"no model at all")
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    onnx.save(onnx.helper.make_model(graph), foreign)
    for command in ("eval {}", "play {}", "deploy {} --robot sim"):
        assert "not an ONNX model" in refused(command.format(noise), capsys)
        assert "without a policy contract" in refused(command.format(foreign), capsys)


def test_a_policy_of_another_task_is_refused_by_name(onnx_file: Path, capsys: pytest.CaptureFixture[str]):
    line = refused(f"eval {onnx_file} --env.control-dt 0.01", capsys)
    assert "timing: control_dt is 0.02 in the file and 0.01 in the task" in line
    assert "position" in refused(f"deploy {onnx_file} --robot sim", capsys)


def test_a_command_outside_the_training_is_refused(go2_onnx: Path, capsys: pytest.CaptureFixture[str]):
    deploy = f"deploy {go2_onnx} --robot sim --command"
    assert "trained for -1 to 1" in refused(f"{deploy} 3 0 0", capsys)
    assert "--command has 2 numbers, and the policy takes 3" in refused(f"{deploy} 0 0", capsys)


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("robolearn.cli.listing.run", interrupted)
    assert refused("list", capsys, status=130) == "robolearn list: interrupted"
