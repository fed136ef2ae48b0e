"""Trainings in Gymnasium environments as users run them: train, resume, evaluate, export, and worlds that break."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from robolearn.cli import main
from robolearn.config import load_yaml
from robolearn.loading import load
from robolearn.training import load_config, make_env
from tests.training_state import differing, last_state, logged

TINY = {
    "ppo": "--num-envs 2 --algorithm.horizon 40 --algorithm.hidden 16 16 --algorithm.epochs 2",
    "sac": "--num-envs 2 --algorithm.hidden 16 16 --algorithm.batch-size 16 --algorithm.warmup 40 "
    "--algorithm.iteration-steps 40 --algorithm.capacity 1000",
}
"""Iterations of 40 steps in each of two worlds."""
SOON = "--env.max-steps 30"


class Breaking(PendulumEnv):
    """Pendulum that raises in a step of its choice; or its process dies there, once, if it is told where to note it."""

    def __init__(self, at: int = 130, note: str = "", **kwargs: Any):
        super().__init__(**kwargs)
        self.at, self.note, self.steps = at, note, 0

    def step(self, u: np.ndarray) -> Any:
        self.steps += 1
        if self.steps == self.at and not self.note:
            raise RuntimeError("the hinge\nis gone")
        if self.steps == self.at:
            with suppress(FileExistsError):
                Path(self.note).touch(exist_ok=False)  # one alone can, of two processes at this step at once
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(u)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Register the toy."""
    breaking: Any = Breaking
    gymnasium.register("Toy/Breaking-v0", breaking, max_episode_steps=30)
    yield
    del gymnasium.registry["Toy/Breaking-v0"]


def robolearn(command: str) -> int:
    return main(command.split())


def only_run(root: Path) -> Path:
    (checkpoints,) = root.glob("**/checkpoints")
    return checkpoints.parent


def trained(root: Path, flags: str, task: str = "Pendulum-v1", algo: str = "ppo", status: int = 0) -> Path:
    """Train and return the run."""
    command = f"train {task} --sim gymnasium --algo {algo} {TINY[algo]} {flags} --runs {root}"
    assert robolearn(command) == status
    return only_run(root)


def refused(command: str, capfd: pytest.CaptureFixture[str], status: int = 2) -> str:
    """Return the one line on stderr of a command that fails with this exit status."""
    capfd.readouterr()
    assert robolearn(command) == status
    (line,) = capfd.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_training_is_resumed_bit_for_bit_evaluated_and_exported(
    algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    # A resume begins new episodes, always the same ones: so what must agree are two resumes of the same training.
    runs = [trained(tmp_path / name, f"{SOON} --steps 160", algo=algo) for name in ("one", "other")]
    assert differing(last_state(runs[0]), last_state(runs[1])) == []
    for i, run in enumerate(runs):
        np.random.seed(i)  # noqa: NPY002 - whatever the process has drawn before
        torch.manual_seed(i)
        assert robolearn(f"train --steps 480 --resume {run}") == 0
    assert differing(last_state(runs[0]), last_state(runs[1])) == []
    assert logged(runs[0]) == logged(runs[1])
    assert [row["steps"] for row in logged(runs[0])] == [80, 160, 240, 320, 400, 480]
    assert last_state(runs[0])["env"]["common_step_counter"] == 6 * 40
    assert logged(runs[0])[-1]["episode/length"] == 30  # of which the broken off ones are none

    assert robolearn(f"eval {runs[0]} --episodes 3") == 0
    result = json.loads((runs[0] / "eval.json").read_text())
    assert result["episodes"] == 3
    assert result["length_s"] == pytest.approx(30 * 0.05)
    path = tmp_path / "policy.onnx"
    assert robolearn(f"export {runs[0]} --output {path}") == 0
    exported, policy = load(path), load(runs[0])
    assert exported.task == "Pendulum-v1"
    for observation in np.random.default_rng(0).normal(size=(20, 1, 3)).astype(np.float32):
        # Both are float32 through three layers.
        np.testing.assert_allclose(exported.act(observation), policy.act(observation), rtol=0, atol=1e-5)
    assert robolearn(f"eval {path} --episodes 3 {SOON}") == 0
    again = json.loads(path.with_suffix(".eval.json").read_text())
    assert again["return"] == pytest.approx(result["return"], rel=1e-3)
    capfd.readouterr()


# Arguments of the environment


def test_arguments_of_the_environment_are_flags(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    given = "--env.kwargs.ctrl_cost_weight 0.5 --env.kwargs.reset-noise-scale 1e-3"
    run = trained(tmp_path, f"{given} {SOON} --steps 80", task="HalfCheetah-v5")
    expected = {"ctrl_cost_weight": 0.5, "reset_noise_scale": 1e-3}
    assert load_yaml(run / "config.yaml")["env"]["kwargs"] == expected
    env: Any = make_env(load_config(run / "config.yaml"), num_envs=1)
    assert env.one.unwrapped._ctrl_cost_weight == 0.5
    *_, extras = env.step(torch.full((1, 6), 0.5))
    assert extras["metrics"]["reward_ctrl"].item() == pytest.approx(-0.5 * 6 * 0.5**2)
    assert env.obs_buf["policy"].abs().max() > 0
    env.close()

    assert (
        robolearn(f"eval {run} --episodes 1 --env.kwargs.forward-reward-weight=0 --env.kwargs.ctrl-cost-weight 0") == 0
    )
    result = json.loads((run / "eval.json").read_text())
    assert result["changes"] == {"env": {"kwargs": {"forward_reward_weight": 0, "ctrl_cost_weight": 0}}}
    assert result["return"] == 0.0
    line = refused(f"train --resume {run} --steps 160 --env.kwargs.ctrl-cost-weight 1", capfd)
    assert "--env cannot change when a run is resumed" in line


def test_an_argument_may_be_anything_that_yaml_has(tmp_path: Path):
    given = "--env.kwargs.healthy_z_range 0.1 2 --env.kwargs.include-cfrc-ext-in-observation false"
    run = trained(tmp_path, f"{given} --env.kwargs.terminate_when_unhealthy --steps 80 {SOON}", task="Ant-v5")
    kwargs = load_yaml(run / "config.yaml")["env"]["kwargs"]
    assert kwargs == {
        "healthy_z_range": [0.1, 2],
        "include_cfrc_ext_in_observation": False,
        "terminate_when_unhealthy": True,
    }


def test_all_arguments_may_be_given_at_once(tmp_path: Path):
    whole = ["--env.kwargs", "{g: 5.0}"]
    command = f"train Pendulum-v1 --sim gymnasium {TINY['ppo']} --steps 80 --runs {tmp_path}"
    assert main([*command.split(), *whole]) == 0
    assert load_yaml(only_run(tmp_path) / "config.yaml")["env"]["kwargs"] == {"g": 5.0}


def test_help_shows_how_to_give_them(capfd: pytest.CaptureFixture[str]):
    assert robolearn("train HalfCheetah-v5 --sim gymnasium --help") == 0
    out = capfd.readouterr().out
    assert "--env.kwargs.NAME" in out
    assert "Arguments that the environment is made with" in out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--env.kwargs.ctrl_cost 1", "HalfCheetah-v5 cannot be made: TypeError: "),
        ("--env.kwargs.frame-skip 5 --env.kwargs.frame_skip 5", "--env.kwargs.frame-skip is given twice"),
        ("--env.kwargs.frame-skip 5 --env.kwargs {a:1}", "--env.kwargs is given twice"),
        ("--env.kwargs {a:1} --env.kwargs.frame-skip 5", "--env.kwargs.frame-skip is given twice"),
        ("--env.kwargs.frame-skip {", "--env.kwargs.frame-skip: expected a value, not '{'"),
        ("--env.kwargs 5", "env.kwargs: expected dict[str, Any], not 5"),
        ("--env.kwargs. 5", "unknown flag '--env.kwargs.'"),
        ("--env.kwarg.frame-skip 5", "unknown flag '--env.kwarg.frame-skip'"),
        ("--env.kwargs.max-episode-steps 5", "kwargs.max_episode_steps is set by max_steps: --env.max-steps N"),
    ],
)
def test_a_wrong_argument_is_one_line(flags: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    line = refused(f"train HalfCheetah-v5 --sim gymnasium --runs {tmp_path} {flags}", capfd)
    assert line.startswith(f"robolearn train: {expected}")
    assert list(tmp_path.iterdir()) == []


# Worlds that break


@pytest.mark.parametrize("way", ["serial", "processes"])
@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_world_that_raises_ends_the_training_with_a_checkpoint(
    algo: str, way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run = trained(tmp_path, f"--steps 800 --env.worlds {way}", "Toy/Breaking-v0", algo, status=1)
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith(
        "robolearn train: Toy/Breaking-v0 raised in step of world 0: RuntimeError: the hinge is gone;"
    )
    assert "; what was learned before is saved, as of iteration 3; go on with: " in line
    assert last_state(run)["iteration"] == 3
    assert len(logged(run)) == 3
    assert line.endswith(f"robolearn train --resume {run}")
    assert robolearn(f"train --resume {run}") == 1
    assert last_state(run)["iteration"] == 6
    assert np.isfinite(load(run).act(np.zeros((1, 3), np.float32))).all()


def test_one_that_raises_before_anything_is_learned_leaves_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    flags = f"{TINY['sac']} --steps 800 --env.kwargs.at 30 --runs {tmp_path}"
    line = refused(f"train Toy/Breaking-v0 --sim gymnasium --algo sac {flags}", capfd, status=1)
    assert line.endswith("Toy/Breaking-v0 raised in step of world 0: RuntimeError: the hinge is gone")
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_is_a_file_here_is_told_from_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    for name in ("mine", "mine.py"):
        line = refused(f"train {name}:Id-v0 --sim gymnasium", capfd)
        told = "which is here and not where Python looks: PYTHONPATH=. robolearn ... mine:Id-v0"
        assert line == f"robolearn train: {name}:Id-v0 needs mine.py, {told}"
    assert refused("train yours:Id-v0 --sim gymnasium", capfd).endswith(
        "needs the package 'yours', which is not installed"
    )


def test_a_setting_of_other_algorithms_is_told_from_one_of_none(capfd: pytest.CaptureFixture[str]):
    line = refused("train Pendulum-v1 --sim gymnasium --algorithm.replay her", capfd)
    assert line.startswith("robolearn train: ppo has no --algorithm.replay; sac, td3, ")
    assert "trpo" not in line
    assert "unknown flag '--algorithm.replai'" in refused(
        "train Pendulum-v1 --sim gymnasium --algorithm.replai 1", capfd
    )


def test_one_that_raises_from_the_start_leaves_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    command = f"train Toy/Breaking-v0 --sim gymnasium --env.kwargs.at 1 --runs {tmp_path}"
    assert "Toy/Breaking-v0 raised in its first step: RuntimeError: the hinge is gone" in refused(command, capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_training_outlives_a_process_that_dies(algo: str, tmp_path: Path):
    flags = f"--steps 240 --env.workers 2 --env.kwargs.at 50 --env.kwargs.note {tmp_path / 'died'}"
    rows = logged(trained(tmp_path / "runs", flags, "Toy/Breaking-v0", algo))
    assert [row.get("worlds/restarts") for row in rows] == [None, 1.0, 1.0]
    assert {row["episode/length"] for row in rows if row.get("episode/count")} == {30.0}
