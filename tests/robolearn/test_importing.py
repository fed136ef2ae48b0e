"""Models that Stable-Baselines3 trained on Gymnasium's environments, as runs of ours; files that mean harm."""

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from robolearn import exporting, importing
from robolearn.algorithms.sb3_files import read_model, read_statistics
from robolearn.cli import main
from robolearn.evaluation import evaluate, make_evaluation_env
from robolearn.loading import load
from robolearn.run import Run
from sim.errors import UserError

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra interop")

PENDULUM = ("a2c", "ddpg", "ppo", "sac", "td3")
ROUNDING = 1e-5
"""Of actions up to 2 through layers of 8 units in float32, whose rounding is 1.2e-7 each."""


class Saved:
    """A tiny model that SB3 has trained for a few hundred steps, and what it saved."""

    def __init__(self, name: str, env_id: str, folder: Path, normalize: bool = False, steps: int = 120, **network: Any):
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

        env = DummyVecEnv([lambda: gymnasium.make(env_id)])
        self.env: Any = VecNormalize(env, clip_obs=1.2, epsilon=1e-3) if normalize else env
        own: dict[str, Any] = {"learning_starts": 50, "batch_size": 8}
        if name in ("ppo", "a2c"):
            own = {"n_steps": 60, "learning_rate": 0.01} | ({"batch_size": 60} if name == "ppo" else {})
        self.model = getattr(sb3, name.upper())(
            "MlpPolicy", self.env, seed=0, device="cpu", policy_kwargs={"net_arch": [8, 8]} | network, **own
        )
        self.model.learn(steps)
        self.zip, self.pkl = folder / f"{name}.zip", folder / f"{name}.pkl" if normalize else None
        self.model.save(self.zip)
        if self.pkl is not None:
            self.env.save(str(self.pkl))

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return SB3's deterministic actions for raw observations."""
        seen = self.env.normalize_obs(observation) if self.pkl is not None else observation
        return self.model.predict(seen, deterministic=True)[0]

    def imported(self, task: str, root: Path) -> Run:
        config = importing.imported_config(self.zip, task, normalized=self.pkl is not None)
        return importing.import_model(self.zip, config, root, self.pkl)


@pytest.fixture(scope="module")
def ppo(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """PPO with VecNormalize on Pendulum-v1."""
    return Saved("ppo", "Pendulum-v1", tmp_path_factory.mktemp("sb3"), normalize=True)


@pytest.fixture(scope="module")
def sac(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """SAC on Pendulum-v1."""
    return Saved("sac", "Pendulum-v1", tmp_path_factory.mktemp("sb3"))


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize("name", PENDULUM)
def test_an_imported_policy_acts_as_it_did(name: str, normalize: bool, tmp_path: Path):
    saved = Saved(name, "Pendulum-v1", tmp_path, normalize)
    run = saved.imported("Pendulum-Swingup", tmp_path / "runs")
    policy = load(run.path)
    assert policy.config is not None
    assert policy.config.algo == f"sb3:{name}"
    observation = 3 * np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    theirs = saved.act(observation)
    assert theirs.std() > 1e-3
    np.testing.assert_allclose(policy.act(observation).clip(-2, 2), theirs, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("name", "normalize"), [("ppo", True), ("sac", False)])
def test_on_our_half_cheetah_it_scores_what_it_scores_on_gymnasiums(name: str, normalize: bool, tmp_path: Path):
    from stable_baselines3.common.evaluation import evaluate_policy

    saved = Saved(name, "HalfCheetah-v5", tmp_path, normalize, steps=300)
    run = saved.imported("HalfCheetah", tmp_path / "runs")
    policy = load(run.path)
    observation = np.random.default_rng(0).normal(size=(100, 17)).astype(np.float32)
    np.testing.assert_allclose(policy.act(observation).clip(-1, 1), saved.act(observation), rtol=0, atol=ROUNDING)

    if normalize:
        saved.env.training, saved.env.norm_reward = False, False
    with pytest.warns(UserWarning, match="not wrapped with a ``Monitor``"):
        theirs, _ = evaluate_policy(saved.model, saved.env, n_eval_episodes=6, return_episode_rewards=True)
    assert policy.config is not None
    ours = evaluate(policy.act, make_evaluation_env(policy.config, 16, seed=0), 16)
    assert ours["length_s"] == pytest.approx(1000 * 0.05)
    noise = (ours["return_std"] ** 2 / 16 + np.var(theirs) / 6) ** 0.5
    assert abs(ours["return"] - np.mean(theirs)) < 4 * noise


def test_the_command_makes_a_run_that_every_other_one_takes(
    ppo: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    command = [
        "import",
        str(ppo.zip),
        "--task",
        "Pendulum-Swingup",
        "--normalize",
        str(ppo.pkl),
        "--env.episode-s",
        "1",
    ]
    assert main(command) == 0
    out, errors = capfd.readouterr()
    assert errors == ""
    assert out.splitlines()[0] == "sb3:ppo, hidden layers 8 x 8 tanh, 120 steps"
    (run,) = (tmp_path / "runs").glob("*/*/")
    about = json.loads((run / "environment.json").read_text())["imported"]
    assert (about["file"], about["timesteps"], about["stable_baselines3"]) == ("ppo.zip", 120, sb3.__version__)
    assert len(about["sha256"]) == len(about["normalize"]["sha256"]) == 64
    config = load(run).config
    assert config is not None
    assert (config.algorithm.learning_rate, config.algorithm.n_steps, config.env.episode_s) == (0.01, 60, 1.0)

    assert main(["eval", str(run), "--episodes", "2"]) == 0
    exported = load(exporting.export(run))
    observation = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    np.testing.assert_allclose(exported.act(observation), ppo.act(observation), rtol=0, atol=ROUNDING)
    assert exported.contract is not None
    seen, stated = ppo.env.obs_rms, exported.contract.normaliser
    assert stated.mean is not None
    assert stated.std is not None
    np.testing.assert_allclose(stated.mean, seen.mean, rtol=1e-6)
    np.testing.assert_allclose(stated.std, np.sqrt(seen.var + 1e-3), rtol=1e-6)
    train = "train Pendulum-Swingup --algo sb3:ppo --num-envs 2 --steps 40 --threads 1 --algorithm.n-steps 20"
    capfd.readouterr()
    assert (
        main([*train.split(), "--algorithm.hidden", "8", "8", "--algorithm.batch-size", "20", "--init", str(run)]) == 0
    )
    capfd.readouterr()
    assert main(["train", "--resume", str(run), "--steps", "1e6"]) == 2
    assert capfd.readouterr().err.endswith("begin a new run from it with --init\n")


def edited(source: Path, into: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a model with another JSON entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(into, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            new.writestr(name, content)
    return into


def with_kwargs(**texts: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(policy_kwargs={":type:": "<class 'dict'>", **texts})


@pytest.mark.parametrize(
    ("change", "task", "said"),
    [
        (lambda data: None, "HalfCheetah", "observes 3 numbers, and the task gives 17: qpos 8, qvel 9"),
        (lambda data: data["action_space"].update(high="[1.]"), "Pendulum-Swingup", "actions from [-2.0] to [1.0]"),
        (lambda data: data["action_space"].update(low="?"), "Pendulum-Swingup", "limits of its 1 actions cannot be"),
        (lambda data: data.update(use_sde=True), "Pendulum-Swingup", "state-dependent noise (use_sde)"),
        (lambda data: data["observation_space"].update(_shape=[3, 64, 64]), "Pendulum-Swingup", "images are not"),
        (
            lambda data: data["observation_space"].update({":type:": "<class 'gymnasium.spaces.dict.Dict'>"}),
            "Pendulum-Swingup", "its observation is a Dict space",
        ),
        (
            lambda data: data["action_space"].update({":type:": "<class 'gymnasium.spaces.discrete.Discrete'>"}),
            "Pendulum-Swingup", "its action is a Discrete space",
        ),
        (
            lambda data: data["policy_class"].update(__module__="sb3_contrib.common.recurrent.policies"),
            "Pendulum-Swingup", "its policy is from sb3_contrib.common.recurrent.policies, not from",
        ),
        (with_kwargs(activation_fn="<class 'torch.nn.modules.activation.Mish'>"), "Pendulum-Swingup", "Mish'>; "),
        (with_kwargs(features_extractor_class="<class 'mine.Net'>"), "Pendulum-Swingup", "features extractor of"),
        (with_kwargs(squash_output="True"), "Pendulum-Swingup", "was made with squash_output"),
        (lambda data: data.update(gamma=2.0), "Pendulum-Swingup", "gamma must be between 0 and 1, not 2.0"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_refused(
    sac: Saved, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None], task: str, said: str,
):  # fmt: skip
    path = edited(sac.zip, tmp_path / "model.zip", change)
    assert main(["import", str(path), "--task", task, "--runs", str(tmp_path / "runs")]) == 2
    out, errors = capfd.readouterr()
    assert out == ""
    assert errors.startswith("robolearn import: ")
    assert errors.count("\n") == 1
    assert said in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--algo sb3:td3", "was trained with sb3:sac, not sb3:td3"),
        ("--algo ppo", "ppo is not an algorithm of Stable-Baselines3"),
        ("--algo sb3:sax", "unknown algorithm 'sb3:sax'; did you mean 'sb3:sac'?"),
        ("--normalize missing.pkl", "cannot read missing.pkl: No such file or directory"),
        ("--algorithm.gamma 0.5", "unknown flag '--algorithm.gamma'"),
    ],
)
def test_a_wrong_request_is_one_line(sac: Saved, capfd: pytest.CaptureFixture[str], arguments: str, said: str):
    assert main(["import", str(sac.zip), "--task", "Pendulum-Swingup", *arguments.split()]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("robolearn import: ")
    assert errors.count("\n") == 1
    assert said in errors


def test_a_model_that_was_never_trained_is_imported(tmp_path: Path):
    config = importing.imported_config(
        Saved("sac", "Pendulum-v1", tmp_path, steps=0).zip, "Pendulum-v1", sim="gymnasium"
    )
    assert config.steps >= 1


def test_networks_of_other_shapes_are_refused(tmp_path: Path):
    class Normed(torch.nn.Module):
        """An activation that brings parameters of its own into the actor."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    saved = Saved("td3", "Pendulum-v1", tmp_path, activation_fn=Normed)
    plain = edited(saved.zip, tmp_path / "plain.zip", lambda data: data.update(policy_kwargs={}))
    with pytest.raises(UserError, match=r"not a plain perceptron of sb3:td3: it holds actor\.mu\.1\.norm"):
        importing.imported_config(plain, "Pendulum-Swingup")


@pytest.mark.parametrize("keep", [0, 100, -40])
def test_a_damaged_file_is_refused(ppo: Saved, tmp_path: Path, keep: int):
    assert ppo.pkl is not None
    model, statistics = tmp_path / "model.zip", tmp_path / "statistics.pkl"
    model.write_bytes(ppo.zip.read_bytes()[:keep])
    statistics.write_bytes(ppo.pkl.read_bytes()[:keep])
    with pytest.raises(UserError, match="is not a model that Stable-Baselines3 saved, or it is damaged"):
        read_model(model)
    with pytest.raises(UserError, match="is not a file that VecNormalize saved, or it is damaged"):
        read_statistics(statistics)


class Harm:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path):
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def test_a_malicious_normalisation_file_does_nothing(sac: Saved, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    mark, evil = tmp_path / "mark", tmp_path / "evil.pkl"
    evil.write_bytes(pickle.dumps(Harm(mark)))
    command = ["import", str(sac.zip), "--task", "Pendulum-Swingup", "--runs", str(tmp_path / "runs")]
    assert main([*command, "--normalize", str(evil)]) == 2
    errors = capfd.readouterr().err
    assert errors.count("\n") == 1
    assert f"{evil} names " in errors
    assert "which no file of VecNormalize does; it is not loaded" in errors
    assert not mark.exists()
    assert not (tmp_path / "runs").exists()
    pickle.loads(evil.read_bytes())
    assert mark.exists()  # so it would have


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "builtins.getattr", "numpy.load"])
@pytest.mark.parametrize("protocol", [0, 4])
def test_no_global_but_the_known_ones_is_found(tmp_path: Path, name: str, protocol: int):
    module, _, attribute = name.rpartition(".")
    text = f"c{module}\n{attribute}\n." if protocol == 0 else ""
    stacked = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(w)]) + w.encode() for w in (module, attribute)) + b"\x93."
    path = tmp_path / "evil.pkl"
    path.write_bytes(text.encode() or stacked)
    with pytest.raises(UserError, match=f"names {name}, which no file of VecNormalize does"):
        read_statistics(path)


def test_pickles_in_a_model_are_not_opened(sac: Saved, tmp_path: Path):
    mark = tmp_path / "mark"
    harm = base64.b64encode(pickle.dumps(Harm(mark))).decode()

    def poison(data: dict[str, Any]) -> None:
        for value in data.values():
            if isinstance(value, dict):
                value[":serialized:"] = harm

    path = edited(sac.zip, tmp_path / "poisoned.zip", poison)
    importing.import_model(path, importing.imported_config(path, "Pendulum-Swingup"), tmp_path / "runs")
    weights = io.BytesIO()
    torch.save({"actor.mu.weight": Harm(mark)}, weights)
    with zipfile.ZipFile(sac.zip) as old, zipfile.ZipFile(tmp_path / "worse.zip", "w") as new:
        for name in old.namelist():
            new.writestr(name, weights.getvalue() if name == "policy.pth" else old.read(name))
    with pytest.raises(UserError, match=r"its policy\.pth holds more than tensors, and is not loaded"):
        read_model(tmp_path / "worse.zip")
    assert not mark.exists()


def test_statistics_must_fit(sac: Saved, tmp_path: Path):
    cheetah = Saved("ppo", "HalfCheetah-v5", tmp_path, normalize=True, steps=60)
    config = importing.imported_config(sac.zip, "Pendulum-Swingup", normalized=True)
    with pytest.raises(UserError, match="is of observations of 17 numbers, and the policy takes 3"):
        importing.import_model(sac.zip, config, tmp_path / "runs", cheetah.pkl)
    assert not (tmp_path / "runs").exists()


def test_only_rewards_normalised_leaves_observations_alone(sac: Saved, tmp_path: Path):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    path = tmp_path / "rewards.pkl"
    VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), norm_obs=False).save(str(path))
    config = importing.imported_config(sac.zip, "Pendulum-Swingup", normalized=True)
    run = importing.import_model(sac.zip, config, tmp_path / "runs", path)
    observation = 3 * np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    np.testing.assert_allclose(load(run.path).act(observation), sac.act(observation), rtol=0, atol=ROUNDING)
