"""Checkpoints: whole or not there, plain data, and never trusted blindly."""

import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from robolearn import checkpoint
from sim.errors import UserError

PAYLOAD = {
    "network": {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3, dtype=torch.int64)},
    "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1 / 3, "betas": (0.9, 0.999)}]},
    "iteration": 12,
    "name": "Go2",
    "none": None,
    "big": 2**100,
    "flag": True,
}


def same(a: object, b: object) -> bool:
    """Equal in value, type and every bit of every tensor."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_the_payload_comes_back(tmp_path: Path):
    path = checkpoint.save(tmp_path / "a.pt", PAYLOAD)
    assert same(checkpoint.load(path), PAYLOAD)
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_modules_and_optimizers_come_back(tmp_path: Path):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = checkpoint.save(tmp_path / "a.pt", {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    loaded = checkpoint.load(path)
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(loaded["net"])
    assert torch.equal(other.weight, net.weight)
    assert same(loaded["optimizer"], optimizer.state_dict())


def test_a_view_does_not_carry_its_storage(tmp_path: Path):
    view = torch.zeros(1_000_000)[:4]
    payload = {"view": view, "parameter": torch.nn.Parameter(view), "o": OrderedDict(a=1)}
    path = checkpoint.save(tmp_path / "a.pt", payload)
    assert path.stat().st_size < 10_000
    assert same(checkpoint.load(path)["o"], {"a": 1})


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"a": {"b": [1, np.float64(1)]}}, r"entry a\.b\.1 is a float64"),
        ({"a": np.zeros(2)}, "entry a is a ndarray"),
        ({"run": {"path": Path()}}, r"entry run\.path is a PosixPath"),
        ({"a": {1.5: 2}}, "key 1.5 in a is neither"),
        ({"f": print}, "entry f is a builtin_function_or_method"),
    ],
)
def test_what_is_not_plain_data_is_named(tmp_path: Path, payload: dict, error: str):
    with pytest.raises(TypeError, match=error):
        checkpoint.save(tmp_path / "a.pt", payload)
    assert list(tmp_path.iterdir()) == []


def test_truncation_anywhere_is_seen(tmp_path: Path):
    path = checkpoint.save(tmp_path / "a.pt", PAYLOAD)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), max(len(whole) // 50, 1)), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"a\.pt is truncated or corrupt"):
            checkpoint.load(path)


def test_a_flipped_bit_is_seen_or_harmless(tmp_path: Path):
    path = checkpoint.save(tmp_path / "a.pt", PAYLOAD)
    whole = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = checkpoint.load(path)
        except UserError:
            refused += 1
        else:
            assert same(loaded, PAYLOAD)
    assert refused > 50


def test_one_wrong_number_is_seen(tmp_path: Path):
    path = checkpoint.save(tmp_path / "a.pt", {"weight": torch.full((100,), 1.2345)})
    value = torch.tensor([1.2345]).numpy().tobytes()
    damaged = path.read_bytes().replace(value, value[::-1], 1)
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="corrupt"):
        checkpoint.load(path)


class Attack:
    """Pickles as a call."""

    def __reduce__(self) -> tuple:
        return (open, ("attacked", "w"))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "payload": Attack()}, "a.pt")
    with pytest.raises(UserError, match="holds more than data"):
        checkpoint.load("a.pt")
    Path("b.pt").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(UserError, match="truncated or corrupt"):
        checkpoint.load("b.pt")
    assert not Path("attacked").exists()


def test_another_version_or_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "VERSION", 7)
    checkpoint.save(tmp_path / "new.pt", {})
    monkeypatch.undo()
    torch.save({"model": 1}, tmp_path / "other.pt")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a", "b")
    (tmp_path / "folder.pt").mkdir()
    for name, error in [
        ("new.pt", "is a checkpoint of format 7 and this robolearn reads format 1"),
        ("other.pt", "is not a robolearn checkpoint"),
        ("zip.pt", "truncated or corrupt"),
        ("none.pt", "No such file"),
        ("folder.pt", "Is a directory"),
    ]:
        with pytest.raises(UserError) as caught:
            checkpoint.load(tmp_path / name)
        assert error in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_last_few_and_the_milestones_are_kept(tmp_path: Path):
    checkpoint.save(tmp_path / "best.pt", {"iteration": 0})
    (tmp_path / "iteration-00000001.pt.partial").write_bytes(b"left by a kill")
    for i in (1, 2, 9, 10, 11):
        checkpoint.save_numbered(tmp_path, i, {"iteration": i}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "iteration-00000010.pt", "iteration-00000011.pt"]
    assert checkpoint.latest(tmp_path)[1] == {"iteration": 11}


def test_latest_goes_back_to_one_that_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with pytest.raises(UserError, match="there is no checkpoint"):
        checkpoint.latest(tmp_path)
    paths = [checkpoint.save_numbered(tmp_path, i, {"iteration": i}) for i in (1, 2, 3)]
    shutil.copy(paths[1], tmp_path / "best.pt")
    paths[2].write_bytes(paths[2].read_bytes()[:-30])
    assert checkpoint.latest(tmp_path) == (paths[1], {"iteration": 2})
    assert [r.getMessage() for r in caplog.records] == [
        f"{paths[2]} is truncated or corrupt; taking a checkpoint before it"
    ]
    for path in paths:
        path.write_bytes(b"")
    assert checkpoint.latest(tmp_path) == (tmp_path / "best.pt", {"iteration": 2})
    (tmp_path / "best.pt").write_bytes(b"")
    caplog.clear()
    with pytest.raises(UserError, match=r"none of the 4 checkpoints .*best\.pt is truncated or corrupt"):
        checkpoint.latest(tmp_path)
    assert not caplog.records  # one error says it all


FILL = """
import sys, torch
from pathlib import Path
from robolearn import checkpoint
from sim.errors import UserError
folder = Path(sys.argv[1])
checkpoint.save_numbered(folder, 1, {"iteration": 1})
%s
try:
    checkpoint.save_numbered(folder, 2, {"big": torch.zeros(1_000_000)}, keep=1)
except UserError as e:
    print(e)
print(sorted(p.name for p in folder.iterdir()), checkpoint.latest(folder)[1])
"""


def refusal(folder: Path, reason: str) -> str:
    first, second = (folder / f"iteration-{i:08d}.pt" for i in (1, 2))
    error = f"cannot write {second}: {reason}; the last good checkpoint is {first}"
    return f"{error}\n['{first.name}'] {{'iteration': 1}}\n"


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path):
    script = 'mount -t tmpfs -o size=1m none "$1" && shift && "$@"'
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    if subprocess.run([*mount, "sh", tmp_path, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a one-megabyte disk needs a mount, which is not permitted here")
    command = [*mount, "sh", tmp_path, sys.executable, "-c", FILL % "", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (refusal(tmp_path, "No space left on device"), "")


def test_a_file_size_limit_leaves_the_last_good_checkpoint(tmp_path: Path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    command = [sys.executable, "-c", FILL % limit, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (refusal(tmp_path, "File too large"), "")


SAVE_FOREVER = """
import sys, torch
from pathlib import Path
from robolearn import checkpoint
i = 0
while True:
    i += 1
    checkpoint.save_numbered(Path(sys.argv[1]), i, {"iteration": i, "w": torch.full((300_000,), float(i))}, keep=2)
    print(i, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rng = random.Random(1)
    for _ in range(4):
        command = [sys.executable, "-c", SAVE_FOREVER, tmp_path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            done = [int(line) for line in process.stdout.read().split("\n") if line]
        path, payload = checkpoint.latest(tmp_path)
        assert payload["iteration"] >= max(done, default=1)
        assert torch.equal(payload["w"], torch.full((300_000,), float(payload["iteration"])))
        assert caplog.records == []
        for old in tmp_path.iterdir():
            old.unlink()
        assert path.suffix == checkpoint.SUFFIX


def test_the_random_generators_go_on_where_they_were(tmp_path: Path):
    random.gauss(0, 1)  # leaves half of a pair behind
    np.random.standard_normal()  # noqa: NPY002
    path = checkpoint.save(tmp_path / "a.pt", {"rng": checkpoint.rng_state()})

    def draw() -> list:
        return [
            *(random.gauss(0, 1) for _ in range(3)),
            *(np.random.standard_normal() for _ in range(3)),  # noqa: NPY002
            *torch.randn(3).tolist(),
        ]

    first = draw()
    assert draw() != first
    checkpoint.set_rng_state(checkpoint.load(path)["rng"])
    assert draw() == first
