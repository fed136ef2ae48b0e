"""A policy comes back from a run, a checkpoint or an exported file, and acts as it did."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import robolearn
from deploy.errors import ContractError
from robolearn import checkpoint
from robolearn import run as runs
from robolearn.config import load_yaml, save_yaml
from robolearn.loading import load, restore
from robolearn.training import default_config, load_config, train
from sim.errors import UserError


def test_five_lines_in_a_notebook(go2_run: Path):
    env = robolearn.make("Go2-Velocity-Flat", num_envs=4)
    policy = robolearn.load(go2_run)
    obs, _ = env.reset()
    obs, reward, _, _, _ = env.step(policy.act(obs["policy"]))
    assert (policy.task, policy.source) == ("Go2-Velocity-Flat", "run")
    assert reward.shape == (4,)


def test_arrays_give_arrays_and_tensors_tensors(go2_run: Path, go2_onnx: Path):
    rows = np.random.default_rng(0).normal(size=(7, 45))
    for policy in (load(go2_run), load(go2_onnx)):
        array, tensor = policy.act(rows), policy.act(torch.from_numpy(rows))
        assert isinstance(array, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        assert (array.shape, array.dtype, tensor.dtype) == ((7, 12), np.float32, torch.float32)
        np.testing.assert_array_equal(array, tensor.numpy())
        assert not tensor.requires_grad


def test_a_run_its_checkpoint_and_its_export_are_one_policy(go2_run: Path, go2_onnx: Path):
    rows = np.random.default_rng(0).normal(size=(50, 45)).astype(np.float32)
    newest = checkpoint.files(go2_run / "checkpoints")[-1]
    run, file, onnx = load(go2_run), load(newest), load(go2_onnx)
    np.testing.assert_array_equal(run.act(rows), file.act(rows))
    np.testing.assert_allclose(run.act(rows), onnx.act(rows), atol=1e-5)  # what the export promises
    assert (run.path, file.path, onnx.path) == (newest, newest, go2_onnx)
    assert run.config == load_config(go2_run / "config.yaml")
    assert (run.contract, onnx.config) == (None, None)
    assert onnx.contract is not None
    assert run.task == onnx.task == onnx.contract.provenance.task
    assert run.terms == onnx.terms
    # And the policy that was trained: its mean action, from the saved parameters alone.
    state = checkpoint.load(newest)["algorithm"]["policy"]
    hidden = (torch.from_numpy(rows) - state["normalizer.shift"]) * state["normalizer.scale"]
    hidden = hidden.clamp(-10, 10)
    for layer in (0, 2, 4, 6):
        hidden = hidden @ state[f"network.{layer}.weight"].T + state[f"network.{layer}.bias"]
        hidden = torch.nn.functional.elu(hidden) if layer < 6 else hidden
    expected = state["centre"] + state["scale"] * hidden
    np.testing.assert_allclose(run.act(rows), expected, atol=1e-5)


def test_an_observation_of_another_shape_is_refused(go2_run: Path, go2_onnx: Path):
    for policy in (load(go2_run), load(go2_onnx)):
        for shape in ((45,), (2, 44), (2, 45, 1)):
            with pytest.raises(UserError, match=r"takes \(N, 45\): angular_velocity 3, gravity 3, joint_position 12"):
                policy.act(np.zeros(shape))


def test_loading_leaves_the_random_numbers_of_the_caller_alone(go2_run: Path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(go2_run)
    assert torch.equal(torch.rand(3), expected)


def test_buffers_as_long_as_the_training_had_worlds_do_not_matter(tmp_path: Path):
    config = default_config(
        "CartPole-Balance", num_envs=8, steps=8 * 24, threads=1, algorithm={"normalize_reward": True}
    )
    run = runs.create(tmp_path, config.task, config.algo, config, config.seed, config.device)
    train(config, run)
    assert load(run.path).act(np.zeros((1, 5))).shape == (1, 1)


def test_a_curriculum_goes_on_from_where_it_was(go2_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(go2_run, run)
    file = checkpoint.files(run / "checkpoints")[-1]
    payload = checkpoint.load(file)
    payload["env"]["buffers"]["command_width"].fill_(0.75)
    checkpoint.save(file, payload)
    assert restore(run).env.log() == {"command_width": 0.75}


def test_a_checkpoint_that_does_not_fit_its_config_is_refused(go2_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(go2_run, run)
    config = load_config(run / "config.yaml")
    config.algorithm.hidden = (32, 32)
    save_yaml(run / "config.yaml", config)
    with pytest.raises(UserError, match="does not fit the networks of its run's config") as caught:
        load(run)
    assert "\n" not in str(caught.value)
    other = default_config("CartPole-Balance")
    save_yaml(run / "config.yaml", other)
    assert load_yaml(run / "config.yaml")["task"] == "CartPole-Balance"
    with pytest.raises(UserError, match="trained on 'Go2-Velocity-Flat', and its run is of 'CartPole-Balance'"):
        load(run)


def test_what_is_no_policy_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="there is no run or checkpoint"):
        load(tmp_path / "nothing")
    with pytest.raises(UserError, match="not a run directory"):
        load(tmp_path)
    with pytest.raises(ContractError, match="cannot read the policy file"):
        load(tmp_path / "nothing.onnx")
    (tmp_path / "other.onnx").write_bytes(b"something else")
    with pytest.raises(ContractError, match=r"other\.onnx: not"):
        load(tmp_path / "other.onnx")
