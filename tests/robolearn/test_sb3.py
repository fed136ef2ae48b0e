"""Stable-Baselines3's algorithms inside our loop: the same numbers as alone, and everything our own ones can do."""

import builtins
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robolearn import exporting
from robolearn import run as runs
from robolearn.algorithms.registry import ALGORITHMS, algorithm_class
from robolearn.cli import main
from robolearn.loading import load
from robolearn.run import Run
from robolearn.training import TrainConfig, default_config, make_env, train
from sim.errors import UserError
from tests.training_state import differing, last_state, logged

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra interop")

NAMES = [name for name in ALGORITHMS if name.startswith("sb3:")]
OFF_POLICY = ("sb3:sac", "sb3:td3", "sb3:ddpg")
SMALL = {"hidden": (16, 16), "iteration_steps": 20}
ROUNDING = 1e-5
"""Of actions up to 2 through layers of 16 units in float32, whose rounding is 1.2e-7 each."""


def config_of(name: str, steps: int = 80, **changes: Any) -> TrainConfig:
    """Return the config of a tiny training: two worlds, episodes of ten steps, two iterations each 40 steps."""
    own = {"learning_starts": 10, "batch_size": 8} if name in OFF_POLICY else {"n_steps": 20}
    if name == "sb3:ppo":
        own |= {"batch_size": 20, "n_epochs": 2}
    return default_config(
        "Pendulum-Swingup", name, num_envs=2, steps=steps, threads=1, checkpoint_every=1, env={"episode_s": 0.5},
        algorithm={"normalize_observation": False, "normalize_reward": False, **SMALL, **own, **changes},
    )  # fmt: skip


def begun(config: TrainConfig, root: Path) -> Run:
    return runs.create(root, config.task, config.algo, config, config.seed, config.device)


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize("name", NAMES)
def test_our_policy_acts_as_sb3_does(name: str, normalize: bool):
    changes: dict[str, Any] = {"normalize_observation": normalize, "normalize_reward": normalize}
    if name not in OFF_POLICY:
        changes["normalize_action"] = normalize
    config = config_of(name, clip_observation=1.5, **changes)
    algorithm = algorithm_class(name)(env := make_env(config), config.algorithm, seed=1)
    for _ in range(2):
        algorithm.collect(env)
        algorithm.update()
    observation = 3 * torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    seen = observation.numpy()
    if normalize:
        seen = algorithm.model.get_vec_normalize_env().normalize_obs(seen)
    theirs, _ = algorithm.model.predict(seen, deterministic=True)
    unit = 2.0 if name in ("sb3:ppo", "sb3:a2c") and config.algorithm.normalize_action else 1.0
    with torch.no_grad():
        ours = algorithm.policy(observation).clamp(-2, 2).numpy()
    assert theirs.std() > 1e-3
    np.testing.assert_allclose(ours, unit * theirs, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_weights_go_to_sb3_and_back(name: str):
    changes = {} if name in OFF_POLICY else {"normalize_action": False}
    config = config_of(name, **changes)
    first, second = (algorithm_class(name)(make_env(config), config.algorithm, seed) for seed in (1, 2))
    second.policy.load_state_dict(first.policy.state_dict())
    second.state_dict()
    theirs, ours = (dict(algorithm.model.policy.state_dict()) for algorithm in (first, second))
    actor = [key for key in theirs if not key.startswith(first.Actor.rest)]
    assert len(actor) >= 6
    for key in actor:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=1e-6)
        if name in ("sb3:td3", "sb3:ddpg"):
            assert torch.equal(ours[key.replace("actor", "actor_target", 1)], ours[key])


@pytest.mark.parametrize("name", ["sb3:sac", "sb3:ppo"])
def test_it_learns_the_same_as_sb3_alone(name: str):
    from tasks.adapters.sb3 import Sb3VecEnv

    config = config_of(name)
    assert getattr(config.algorithm, "normalize_action", True)
    algorithm = algorithm_class(name)(env := make_env(config), config.algorithm, seed=3)
    for _ in range(2):
        algorithm.collect(env)
    arguments = {"batch_size": 8, "learning_starts": 10, "learning_rate": 1e-3, "gamma": 0.98}
    if name == "sb3:ppo":
        arguments = {"batch_size": 20, "n_epochs": 2, "n_steps": 20, "learning_rate": 1e-3, "gamma": 0.98}
    alone = getattr(sb3, name.removeprefix("sb3:").upper())(
        "MlpPolicy",
        Sb3VecEnv(make_env(config), normalize_action=name == "sb3:ppo"),
        seed=3,
        policy_kwargs={"net_arch": [16, 16]},
        device="cpu",
        **arguments,
    )
    alone.learn(80)
    assert algorithm.model.num_timesteps == alone.num_timesteps == 80
    assert differing(dict(algorithm.model.policy.state_dict()), dict(alone.policy.state_dict())) == []


@pytest.mark.parametrize(
    ("name", "normalize"),
    [("sb3:sac", False), ("sb3:td3", True), ("sb3:ddpg", False), ("sb3:ppo", True), ("sb3:a2c", False)],
)
def test_a_resumed_training_goes_on_bit_for_bit(name: str, normalize: bool, tmp_path: Path):
    changes: dict[str, Any] = {"normalize_observation": normalize, "normalize_reward": normalize}
    if name in OFF_POLICY:  # random actions, which have a generator of their own, on both sides of the cut
        changes["learning_starts"] = 60
    config = config_of(name, steps=160, **changes)
    whole, cut = begun(config, tmp_path / "whole"), begun(config, tmp_path / "cut")
    train(config, whole)
    train(config_of(name, steps=40, **changes), cut)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - what SB3 draws from
    train(config, cut, resume=True)

    assert differing(last_state(whole.path), last_state(cut.path)) == []
    assert logged(whole.path) == logged(cut.path)
    assert len(logged(cut.path)) == 4
    assert logged(cut.path)[-1]["episode/count"] == 4
    assert any(key.startswith("train/") and key.endswith("loss") for key in logged(cut.path)[-1])


@pytest.mark.parametrize("name", ["sb3:sac", "sb3:ppo"])
def test_a_run_evaluates_and_exports(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    config = config_of(name, normalize_observation=True)
    run = begun(config, tmp_path)
    train(config, run)
    assert ":" not in run.path.name
    assert main(["eval", str(run.path), "--episodes", "2"]) == 0
    exported = load(exporting.export(run.path))
    assert exported.contract is not None
    assert exported.contract.provenance.algorithm == name
    assert exported.contract.normaliser.location == "in_graph"
    observation = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    ours = load(run.path).act(observation).clip(-2, 2)
    np.testing.assert_allclose(exported.act(observation), ours, rtol=0, atol=ROUNDING)
    printed, _ = capfd.readouterr()
    assert "rollout/" not in printed


@pytest.mark.parametrize(("name", "ours"), [("sb3:sac", "sac"), ("sb3:td3", "td3"), ("sb3:ppo", "ppo")])
def test_a_new_training_begins_with_the_policy(name: str, ours: str, tmp_path: Path):
    first = begun(config_of(name), tmp_path)
    train(config_of(name), first)
    again = begun(config_of(name), tmp_path)
    train(config_of(name), again, init=first)
    followed = default_config(
        "Pendulum-Swingup", ours, num_envs=2, steps=1, threads=1, env={"episode_s": 0.5},
        algorithm={"hidden": (16, 16), "activation": "tanh"} if ours == "ppo"
        else {"hidden": (16, 16), "iteration_steps": 10},
    )  # fmt: skip
    other = begun(followed, tmp_path)
    train(followed, other, init=first)
    observation = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    last = load(first.path).act(observation)
    for run in (again, other):
        start = load(run.checkpoints / "iteration-00000000.pt").act(observation)
        np.testing.assert_allclose(start, last, rtol=0, atol=ROUNDING)
    # What SB3 itself goes on from is that policy too, not one of its own.
    given = again.checkpoints / "iteration-00000000.pt"
    model = algorithm_class(name)(make_env(config_of(name)), config_of(name).algorithm)
    model.load_state_dict(Run(again.path, given).load()[1]["algorithm"])
    theirs, _ = model.model.predict(observation, deterministic=True)
    unit = 2.0 if name == "sb3:ppo" else 1.0
    np.testing.assert_allclose(unit * theirs, last.clip(-2, 2), rtol=0, atol=ROUNDING)


def test_a_policy_that_normalises_is_not_begun_with_unnormalised(tmp_path: Path):
    normalizing = config_of("sb3:ppo", normalize_observation=True)
    first = begun(normalizing, tmp_path)
    train(normalizing, first)
    plain = config_of("sb3:ppo")
    with pytest.raises(UserError, match=r"add --algorithm[.]normalize-observation"):
        train(plain, begun(plain, tmp_path), init=first)
    again = begun(normalizing, tmp_path)
    train(normalizing, again, init=first)
    counts = [float(run.load()[1]["algorithm"]["policy"]["normalizer.count"]) for run in (first, again)]
    assert counts[1] == pytest.approx(2 * counts[0], rel=1e-3)


def test_an_interrupt_ends_the_training_after_its_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tasks.adapters.sb3 import Sb3VecEnv

    real: Callable[..., Any] = Sb3VecEnv.step_wait
    steps = []

    def interrupted(self: Sb3VecEnv) -> Any:
        steps.append(1)
        if len(steps) == 25:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(Sb3VecEnv, "step_wait", interrupted)
    config = config_of("sb3:sac", steps=400)
    outcome = train(config, run := begun(config, tmp_path))
    assert (outcome.finished, outcome.iterations, len(steps)) == (False, 2, 40)
    assert run.load()[1]["iteration"] == 2


def test_every_hyperparameter_is_a_flag_with_a_meaning():
    for name in NAMES:
        Config = algorithm_class(name).Config
        meanings = dict(line.removeprefix(":param ").split(": ", 1) for line in Config.__doc__.splitlines()[2:])
        assert meanings.keys() == Config.__dataclass_fields__.keys()
        assert [field for field, text in meanings.items() if len(text) < 10 and field != "gamma"] == []
    sac = algorithm_class("sb3:sac").Config()
    assert (sac.ent_coef, sac.target_entropy, sac.train_freq, sac.tau) == ("auto", "auto", 1, 0.005)


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("sb3:sac", "--algorithm.ent-coef foo", "Stable-Baselines3: could not convert string to float: 'foo'"),
        ("sb3:ppo", "--algorithm.batch-size 1", "Stable-Baselines3: `batch_size` must be greater than 1"),
        ("sb3:ppo", "--algorithm.n-steps 0", "algorithm: n_steps must be at least 1, not 0"),
        ("sb3:ppo", "--algorithm.learning-rate -1", "algorithm: learning_rate must be finite and not negative"),
        ("sb3:td3", "--algorithm.gamma 2", "algorithm: gamma must be between 0 and 1, not 2.0"),
        ("sb3:sac", "--algorithm.batch-size 9 --algorithm.buffer-size 8", "batch_size 9 is more than buffer_size 8"),
        ("sb3:sac", "--algorithm.buffer-size 1e12", "lower --algorithm.buffer-size"),
        ("sb3:sac", "--algorithm.activation mish", "unknown activation 'mish'"),
        ("sb3:sac", "--algorithm.use-sde", "unknown flag '--algorithm.use-sde'"),
        ("sb3:dqn", "", "unknown algorithm 'sb3:dqn'"),
    ],
)
def test_a_mistake_is_one_line(
    name: str, flags: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(f"train Pendulum-Swingup --algo {name} --steps 100 --threads 1 {flags}".split()) == 2
    out, errors = capfd.readouterr()
    assert out == ""
    assert errors.startswith("robolearn train: ")
    assert errors.count("\n") == 1
    assert said in errors
    assert list((tmp_path / "runs").glob("*")) == []


def test_without_sb3_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "stable_baselines3":
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "robolearn.algorithms.sb3", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UserError) as error:
        algorithm_class("sb3:sac")
    assert str(error.value) == 'an algorithm sb3:NAME needs stable-baselines3; pip install "robolearn[interop]"'
