"""Trainings that are killed, interrupted or run out of disk, through the command line."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from robolearn import checkpoint
from tests.training_state import differing, last_state, logged

ROOT = Path(__file__).parents[2]
CARTPOLE = "CartPole-Swingup --num-envs 8 --algorithm.horizon 16 --algorithm.hidden 16 16"
GO2 = "Go2-Velocity-Flat --num-envs 8 --env.episode-s 1 --algorithm.hidden 16 16"
TINY = """CartPole-Balance --num-envs 2 --algorithm.horizon 8 --algorithm.epochs 1 --algorithm.minibatches 1
    --algorithm.hidden 4"""

SLOW = """
import time
from pathlib import Path

from tasks.cartpole import CartPoleBalance


class Slow(CartPoleBalance):
    def model(self):
        if list(Path("runs").glob("*/*/environment.json")):  # once, for the training itself
            Path("waiting").touch()
            time.sleep(60)
        return super().model()
"""


_SERVER = """
import json, os, resource, sys
import robolearn.cli.train
from robolearn.cli import main
for line in sys.stdin:
    arguments, folder, output, file_limit = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        status = 70
        try:
            status = main(arguments)
        except BaseException:
            import traceback
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class CommandLine:
    """Runs ``robolearn`` commands one at a time, forked from a process that has imported everything."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path):
        self._server, self.folder = server, folder

    def start(self, arguments: Sequence[str], file_limit: int = 0) -> int:
        """Start a command in the folder and return its process id; no file of it may grow beyond ``file_limit``."""
        assert self._server.stdin is not None
        request = [list(arguments), str(self.folder), str(self.folder / "output"), file_limit]
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._line())

    def wait(self) -> tuple[int, str]:
        """Return the exit status of the command, negative for a signal, and what it printed."""
        status = int(self._line())
        return status, (self.folder / "output").read_text()

    def run(self, arguments: Sequence[str], file_limit: int = 0) -> tuple[int, str]:
        """Run a command to its end."""
        self.start(arguments, file_limit)
        return self.wait()

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()


@contextmanager
def command_line(folder: Path) -> Iterator[CommandLine]:
    """Start the process that commands are forked from."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield CommandLine(server, folder)
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("cli")) as started:
        yield started


@pytest.fixture
def cli(server: CommandLine, tmp_path: Path) -> CommandLine:
    server.folder = tmp_path
    return server


def only_run(root: Path) -> Path:
    (run,) = root.glob("*/*/")
    return run


def wait_for(root: Path, iteration: int, timeout: float = 60.0) -> Path:
    """Return the run below ``root`` once it has the checkpoint of an iteration, or a later one."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = list(root.glob("*/*/checkpoints/iteration-*.pt"))
        if any(int(path.stem.removeprefix("iteration-")) >= iteration for path in found):
            return found[0].parent.parent
        time.sleep(0.002)
    raise AssertionError(f"no checkpoint of iteration {iteration} below {root} in {timeout} s")


def kill_and_collect(cli: CommandLine, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    status, output = cli.wait()
    assert status == -signal.SIGKILL, output


@pytest.mark.parametrize(("task", "steps"), [(CARTPOLE, 10 * 8 * 16), (GO2, 6 * 8 * 24)], ids=["CartPole", "Go2"])
def test_a_killed_training_goes_on_bit_for_bit(cli: CommandLine, tmp_path: Path, task: str, steps: int):
    train = f"train {task} --steps {steps} --checkpoint-every 2 --threads 1".split()
    status, output = cli.run([*train, "--runs", "whole"])
    assert status == 0, output
    pid = cli.start([*train, "--runs", "cut"])
    cut = wait_for(tmp_path / "cut", 2)
    kill_and_collect(cli, pid)
    assert last_state(cut)["iteration"] < last_state(only_run(tmp_path / "whole"))["iteration"]
    status, output = cli.run(["train", "--resume", str(cut)])
    assert status == 0, output

    whole = only_run(tmp_path / "whole")
    assert differing(last_state(whole), last_state(cut)) == []
    assert logged(whole) == logged(cut)
    assert any(row.get("episode/return") is not None for row in logged(cut))


def test_twenty_kills_at_random_moments_change_nothing(cli: CommandLine, tmp_path: Path):
    train = f"train {TINY} --checkpoint-every 1 --threads 1".split()
    pid = cli.start([*train, "--steps", "1e9", "--runs", "cut"])
    run = wait_for(tmp_path / "cut", 0)
    moments, reached = random.Random(1), 0
    for _ in range(20):
        time.sleep(moments.uniform(0.0, 0.3))
        kill_and_collect(cli, pid)
        iteration = last_state(run)["iteration"]
        assert iteration >= reached
        assert [row["iteration"] for row in logged(run)][:iteration] == list(range(iteration))
        reached = iteration
        pid = cli.start(["train", "--resume", str(run)])
    kill_and_collect(cli, pid)
    steps = str((reached + 30) * 16)
    status, output = cli.run(["train", "--resume", str(run), "--steps", steps])
    assert status == 0, output
    assert "Traceback" not in output
    assert cli.run([*train, "--steps", steps, "--runs", "whole"])[0] == 0
    whole = only_run(tmp_path / "whole")
    assert differing(last_state(whole), last_state(run)) == []
    assert logged(whole) == logged(run)
    assert list(run.rglob("*.partial")) == []


def test_an_interrupt_saves_and_says_how_to_go_on(cli: CommandLine, tmp_path: Path):
    pid = cli.start(f"train {TINY} --steps 1e9 --checkpoint-every 1000000 --threads 1".split())
    run = wait_for(tmp_path / "runs", 0)
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)
    status, output = cli.wait()
    assert status == 130
    assert "Traceback" not in output
    done = last_state(run)["iteration"]
    assert done == len(logged(run)) > 0
    last = output.strip().splitlines()[-1]
    command = last.partition("go on with: robolearn ")[2].split()
    assert command == ["train", "--resume", str(run.relative_to(tmp_path))]
    status, output = cli.run([*command, "--steps", str((done + 2) * 16)])
    assert status == 0, output
    assert last_state(run)["iteration"] == done + 2


def test_a_full_disk_leaves_the_last_good_checkpoint(cli: CommandLine, tmp_path: Path):
    train = f"train {TINY} --steps 64 --threads 1".split()
    assert cli.run(train)[0] == 0
    run = only_run(tmp_path / "runs")
    good = checkpoint.files(run / "checkpoints")[-1]
    size = good.stat().st_size
    status, output = cli.run(["train", "--resume", str(run), "--steps", "128"], file_limit=size // 2)
    assert status == 1
    errors = [line for line in output.splitlines() if line.startswith("robolearn train:")]
    assert len(errors) == 1
    assert f"the last good checkpoint is {good}" in errors[0]
    assert "Traceback" not in output
    assert checkpoint.latest(run / "checkpoints")[0] == good
    status, output = cli.run(["train", "--resume", str(run)])
    assert status == 0, output
    assert last_state(run)["iteration"] == 8


def test_extending_keeps_the_config_true(cli: CommandLine, tmp_path: Path):
    assert cli.run(f"train {TINY} --steps 32 --threads 1".split())[0] == 0
    run = only_run(tmp_path / "runs")
    assert cli.run(["train", "--resume", str(run), "--steps", "64"])[0] == 0
    assert "steps: 64\n" in (run / "config.yaml").read_text()
    status, output = cli.run(["train", "--resume", str(run), "--algorithm.gamma", "0.9"])
    assert status == 2
    assert f"--init {run}" in output


def test_init_takes_the_policy_and_nothing_else(cli: CommandLine, tmp_path: Path):
    assert cli.run(f"train {TINY} --steps 32 --threads 1 --runs first".split())[0] == 0
    first = only_run(tmp_path / "first")
    second = f"train {TINY} --steps 16 --threads 1 --runs second --init {first} --checkpoint-every 1".split()
    status, output = cli.run(second)
    assert status == 0, output
    begun = checkpoint.load(only_run(tmp_path / "second") / "checkpoints" / "iteration-00000000.pt")
    assert differing(begun["algorithm"]["policy"], last_state(first)["algorithm"]["policy"]) == []
    assert begun["iteration"] == 0
    assert json.dumps(sorted(begun["algorithm"]["optimizer"]["state"])) == "[]"


def test_a_run_that_is_being_trained_is_not_resumed(cli: CommandLine, tmp_path: Path):
    pid = cli.start(f"train {TINY} --steps 1e9 --threads 1".split())
    run = wait_for(tmp_path / "runs", 0)
    config = (run / "config.yaml").read_text()
    command = [sys.executable, "-m", "robolearn.cli", "train", "--resume", str(run), "--steps", "2e9"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    kill_and_collect(cli, pid)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr == f"robolearn train: {run} is being trained by process {pid}\n"
    assert (run / "config.yaml").read_text() == config


@pytest.mark.parametrize("more", ["", "--steps 32", "--steps 17"])
def test_a_run_that_has_done_its_steps_is_not_resumed(cli: CommandLine, tmp_path: Path, more: str):
    assert cli.run(f"train {TINY} --steps 32 --threads 1".split())[0] == 0
    run = only_run(tmp_path / "runs")
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    status, output = cli.run(f"train --resume {run} {more}".split())
    assert status == 2
    assert output == f"robolearn train: {run} has already done 32 steps; give more with --steps\n"
    assert {path: path.read_bytes() for path in files} == files
    assert {path for path in run.rglob("*") if path.is_file() and path.name != "lock"} == set(files)


def test_an_interrupt_before_the_first_checkpoint_leaves_nothing(cli: CommandLine, tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    pid = cli.start(["train", "slow.py:Slow", "--threads", "1"])
    end = time.monotonic() + 60.0
    while not (tmp_path / "waiting").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert only_run(tmp_path / "runs").is_dir()
    os.kill(pid, signal.SIGINT)
    status, output = cli.wait()
    assert status == 130
    assert output == "robolearn train: interrupted before the first checkpoint; nothing was saved\n"
    assert list((tmp_path / "runs").glob("*")) == []


def test_a_policy_that_does_not_fit_leaves_no_run(cli: CommandLine, tmp_path: Path):
    assert cli.run(f"train {TINY} --steps 16 --threads 1 --runs first".split())[0] == 0
    first = only_run(tmp_path / "first")
    status, output = cli.run(["train", "CartPole-Balance", "--threads", "1", "--runs", "second", "--init", str(first)])
    assert status == 2, output
    assert "does not fit the networks" in output
    assert list((tmp_path / "second").glob("*")) == []


def test_export_says_what_it_exported(cli: CommandLine, tmp_path: Path):
    assert cli.run(f"train {TINY} --steps 32 --threads 1 --checkpoint-every 1".split())[0] == 0
    run = only_run(tmp_path / "runs").relative_to(tmp_path)
    status, output = cli.run(["export", "runs"])
    assert status == 0, output
    assert output.splitlines()[0] == f"the policy of {run} after iteration 2"
    status, output = cli.run(["export", str(run / "checkpoints" / "iteration-00000000.pt")])
    assert status == 0, output
    assert output.splitlines()[0] == f"the policy of {run} after iteration 0: untrained"


IMPORTING = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "robolearn.cli.train":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:  # as in a callback of the import system, which drops what is raised there
                pass

from robolearn.cli import main
sys.meta_path.insert(0, Interrupting())
sys.exit(main(["train", "CartPole-Balance"]))
"""


def test_an_interrupt_while_a_command_is_imported_is_one_line(tmp_path: Path):
    command = [sys.executable, "-c", IMPORTING]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "robolearn train: interrupted\n")
    assert list(tmp_path.iterdir()) == []
