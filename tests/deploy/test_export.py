"""Export, golden replay and runtime: what is written equals torch, and what does not is not written."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from deploy.contract import from_json
from deploy.errors import ContractError
from deploy.exporter import export
from deploy.golden import verify
from deploy.onnx_file import CONTRACT_KEY, CONTRACT_SHA256_KEY, read_content
from deploy.runtime import Policy, read_contract


@pytest.fixture
def exported(module, contract, observations, tmp_path) -> Path:
    path = tmp_path / "out" / "policy.onnx"
    export(module, contract, observations, path)
    return path


def expected_target(action: np.ndarray, contract) -> np.ndarray:
    section = contract.action
    low, high = np.array(section.clip_raw).T
    target_low, target_high = np.array(section.clip_target).T
    return np.clip(
        np.array(section.offset) + np.array(section.scale) * np.clip(action, low, high), target_low, target_high
    )


def test_the_file_equals_torch(module, contract, observations, exported):
    policy = Policy(exported)
    # Unseen inputs, some far outside the normaliser's range, so that every clip is met.
    fresh = (10.0 * np.random.default_rng(1).normal(size=(300, 21))).astype(np.float32)
    with torch.no_grad():
        wanted = module(torch.from_numpy(fresh)).numpy()
    action, target = policy.act(fresh)
    assert action.dtype == target.dtype == np.float32
    np.testing.assert_allclose(action, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(target, expected_target(wanted, contract), rtol=0, atol=1e-5)
    assert (np.abs(wanted) > 1.0).any()
    assert (np.abs(wanted) < 1.0).any()
    assert (target[:, 2] == np.float32(0.5)).any(), "clip_target was never met"
    one_by_one = [policy.act(row[None]) for row in fresh]
    np.testing.assert_allclose(np.concatenate([a for a, _ in one_by_one]), wanted, rtol=0, atol=1e-5)
    assert not np.array_equal(one_by_one[0][0], one_by_one[1][0]), "an output was overwritten by the next call"


def test_the_file_is_one_self_contained_onnx_with_the_contract_inside(contract, exported):
    assert sorted(p.name for p in exported.parent.iterdir()) == ["policy.golden.npz", "policy.onnx"]
    model = onnx.load(exported, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert all(t.data_location == onnx.TensorProto.DEFAULT for t in model.graph.initializer)
    assert [i.name for i in model.graph.input] == ["observation"]
    assert [o.name for o in model.graph.output] == ["action", "target"]
    assert str(Path.cwd()).encode() not in exported.read_bytes()

    # onnxruntime's own reading of the metadata, against ours.
    metadata = onnxruntime.InferenceSession(exported).get_modelmeta().custom_metadata_map
    text = metadata[CONTRACT_KEY]
    assert metadata[CONTRACT_SHA256_KEY] == hashlib.sha256(text.encode()).hexdigest()
    written = from_json(text)
    assert written == read_contract(exported)
    assert written.to_json() == text
    assert replace(
        written, policy=contract.policy, graph=None, golden=None, bundle_id=None, created_utc=None
    ) == contract  # fmt: skip


def test_the_module_is_left_as_it_was(module, contract, observations, tmp_path):
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    export(module, contract, observations, tmp_path / "policy.onnx")
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_no_warning_reaches_the_user(contract, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import numpy as np, torch\n"
        "from deploy.contract import from_json\n"
        "from deploy.exporter import export\n"
        "class Traced(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x[:, :4] if x.shape[0] > 0 else x[:, :4] * 2\n"
        f"contract = from_json({contract.to_json()!r})\n"
        f"export(Traced(), contract, np.zeros((200, 21), np.float32), {str(tmp_path / 'policy.onnx')!r})\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert verify(tmp_path / "policy.onnx").steps == 200


class Random(torch.nn.Module):
    def forward(self, observation):
        return observation[:, :4] + torch.randn_like(observation[:, :4])


class BranchOnValue(torch.nn.Module):
    """Tracing keeps one branch for good, so the file is another function."""

    def forward(self, observation):
        return observation[:, :4] if observation.sum() > 1e9 or observation.shape[0] == 1 else 2.0 * observation[:, :4]


class NotANumber(torch.nn.Module):
    def forward(self, observation):
        return torch.sqrt(observation[:, :4])


class NoOnnxForm(torch.nn.Module):
    def forward(self, observation):
        return torch.special.bessel_j0(observation[:, :4])


class WrongWidth(torch.nn.Module):
    def forward(self, observation):
        return observation[:, :5]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Random(), "another action"),
        (BranchOnValue(), "differs from torch"),
        (NotANumber(), "not finite"),
        (NoOnnxForm(), "ONNX"),
        (WrongWidth(), "shape"),
    ],
)
def test_what_cannot_be_verified_is_not_written(bad, said, contract, observations, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "policy.onnx").write_bytes(b"the last good one")
    with pytest.raises(ContractError, match=said) as error:
        export(bad, contract, observations, folder / "policy.onnx")
    assert "\n" not in str(error.value)
    assert [p.name for p in folder.iterdir()] == ["policy.onnx"]
    assert (folder / "policy.onnx").read_bytes() == b"the last good one"


def test_a_difference_beyond_the_tolerance_is_refused(module, contract, observations, tmp_path):
    """float32 kernels of two libraries do not agree to 1e-12, so this tolerance must refuse a sound file."""
    with pytest.raises(ContractError, match="more than 1e-12"):
        export(module, contract, observations, tmp_path / "policy.onnx", tolerance=1e-12)
    assert list(tmp_path.iterdir()) == []


def test_too_few_or_unusable_observations_are_refused(module, contract, observations, tmp_path):
    broken = observations.copy()
    broken[17, 3] = np.inf
    for given, said in ((observations[:199], "199"), (broken, "step 17"), (observations[:, :20], "20")):
        with pytest.raises(ContractError, match=said):
            export(module, contract, given, tmp_path / "policy.onnx")
    with pytest.raises(ContractError, match=r"\.onnx"):
        export(module, contract, observations, tmp_path / "policy.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(module, contract, observations, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ContractError, match="cannot write"):
        export(module, contract, observations, tmp_path / "file" / "policy.onnx")


def test_the_golden_replay_passes_and_reports_its_errors(exported):
    report = verify(exported)
    assert report.steps == 200
    assert report.action_error <= 1e-5
    assert report.target_error <= 1e-5


def _with_contract(source: Path, contract, path: Path) -> None:
    """Write the graph of `source` under another contract, paired as an exporter would."""
    model = onnx.load(source)
    contract = replace(contract, graph=read_contract(source).graph)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {CONTRACT_KEY: contract.to_json(), CONTRACT_SHA256_KEY: contract.sha256})
    path.write_bytes(model.SerializeToString())


def test_a_dropped_normaliser_fails_the_golden_replay(module, contract, observations, exported, tmp_path):
    without = type(module)(21, 4)
    without.load_state_dict(module.state_dict() | {"mean": torch.zeros(21), "std": torch.ones(21)})
    export(without, contract, observations, tmp_path / "without.onnx")
    _with_contract(tmp_path / "without.onnx", read_contract(exported), exported)
    with pytest.raises(ContractError, match="the action differs from the golden replay"):
        verify(exported)


def test_a_doubled_scale_in_the_graph_fails_the_golden_replay(module, contract, observations, exported, tmp_path):
    doubled = replace(contract, action=replace(contract.action, scale=tuple(2 * s for s in contract.action.scale)))
    export(module, doubled, observations, tmp_path / "doubled.onnx")
    _with_contract(tmp_path / "doubled.onnx", read_contract(exported), exported)
    with pytest.raises(ContractError, match="the target differs from the golden replay"):
        verify(exported)


def test_a_missing_or_altered_replay_is_refused(exported):
    golden = exported.with_name("policy.golden.npz")
    data = bytearray(golden.read_bytes())
    data[len(data) // 2] ^= 1
    golden.write_bytes(data)
    with pytest.raises(ContractError, match="not the golden replay"):
        verify(exported)
    golden.unlink()
    with pytest.raises(ContractError, match="cannot read"):
        verify(exported)


def test_files_that_are_not_ours_or_not_whole_are_refused_in_one_line(exported, tmp_path):
    model = onnx.load(exported)
    del model.metadata_props[:]
    whole = exported.read_bytes()
    text = onnx.load(exported).metadata_props[0].value
    assert from_json(text)
    cases = {
        "policy contract": model.SerializeToString(),
        "ONNX": b"",
        "not an ONNX": b"PK\x03\x04 something else entirely" * 50,
        "altered": whole.replace(b'"kp":25.0', b'"kp":75.0'),
    }
    assert cases["altered"] != whole
    for said, data in cases.items():
        (tmp_path / "bad.onnx").write_bytes(data)
        with pytest.raises(ContractError, match=said) as error:
            Policy(tmp_path / "bad.onnx")
        assert "\n" not in str(error.value)
        assert "bad.onnx" in str(error.value)
    with pytest.raises(ContractError, match="cannot read"):
        Policy(tmp_path / "absent.onnx")


def test_every_truncation_is_refused(exported, tmp_path):
    whole = exported.read_bytes()
    for length in {*range(0, len(whole), 61), *range(len(whole) - 200, len(whole))}:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        with pytest.raises(ContractError):
            read_contract(tmp_path / "cut.onnx")


def test_altered_weights_are_refused(exported):
    data = bytearray(exported.read_bytes())
    weight = onnx.load(exported).graph.initializer[0].raw_data
    data[bytes(data).index(weight) + 2] ^= 0x10
    exported.write_bytes(data)
    with pytest.raises(ContractError, match="the graph is not the one"):
        Policy(exported)


def test_the_graph_digest_ignores_only_the_metadata(exported):
    model = onnx.load(exported)
    bare = onnx.load(exported)
    del bare.metadata_props[:]
    digest = read_content(bare.SerializeToString()).graph_sha256
    assert (
        read_content(model.SerializeToString()).graph_sha256
        == digest
        == hashlib.sha256(bare.SerializeToString()).hexdigest()
    )


def test_an_observation_of_another_shape_is_refused(exported):
    policy = Policy(exported)
    for shape in ((21,), (1, 20), (3, 22), (1, 1, 21)):
        with pytest.raises(ContractError, match="joint_velocity 4"):
            policy.act(np.zeros(shape, np.float32))


def test_the_robot_side_loads_neither_torch_nor_mujoco(exported):
    root = Path(__file__).parents[2]
    code = (
        "import sys, deploy.golden, deploy.controller, deploy.describe, deploy.differences\n"
        f"deploy.golden.verify({str(exported)!r})\n"
        "allowed = {'numpy', 'onnxruntime', 'deploy'}\n"
        "print(*sorted(allowed.union({'torch', 'mujoco', 'onnx', 'sim', 'tasks', 'robolearn'}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["deploy", "numpy", "onnxruntime"]
