"""The members other libraries touch, the adapters' promises, and the libraries themselves on our environments."""

import builtins
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from sim.errors import UserError
from tasks.adapters.gymnasium_vector import GymnasiumVectorEnv
from tasks.adapters.isaac_gym import IsaacGymVecTask
from tasks.adapters.legged_gym import LeggedGymTask

Make = Callable[..., Any]
SHORT = {"limit": 0.05, "episode_s": 0.2}
"""The slider's episodes are five steps; in the fifth, world 2 is the one that gets beyond the limit."""


# The environment itself


def test_what_other_libraries_read_of_an_environment(env_of: Make):
    env = env_of("Go2-Velocity-Flat", worlds=4)
    assert env.unwrapped is env
    assert env.num_envs == 4
    assert env.device == torch.device("cpu")
    assert (env.step_dt, env.physics_dt) == (0.02, 0.005)
    assert (env.max_episode_length, env.max_episode_length_s) == (1000, 20.0)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert env.metadata["render_fps"] == 50
    assert env.render_mode is None
    assert not hasattr(env, "possible_agents")  # its presence means several agents to skrl
    assert env.cfg is env.task.config
    assert env.unwrapped.sim.num_worlds == 4
    env.episode_length_buf = torch.full((4,), 7)
    assert env.episode_length_buf.tolist() == [7] * 4
    for group in ("policy", "critic"):
        space = env.single_observation_space[group]
        assert isinstance(space, gymnasium.spaces.Box)
        assert space.dtype == np.float32
        assert env.observation_space[group].shape == (4, *space.shape)
    action = env.single_action_space
    assert isinstance(action, gymnasium.spaces.Box)
    assert np.isfinite([action.low, action.high]).all()
    assert env.action_space.shape == (4, *action.shape)
    env.close()


def test_what_reset_and_step_return(env_of: Make):
    env = env_of("Go2-Velocity-Flat", worlds=4)
    obs, extras = env.reset(seed=1, options=None)
    assert isinstance(extras, dict)
    obs, reward, terminated, truncated, extras = env.step(torch.from_numpy(env.action_space.sample()))
    assert {group: (values.dtype, tuple(values.shape)) for group, values in obs.items()} == {
        group: (torch.float32, (4, sum(sizes.values()))) for group, sizes in env.observation_terms.items()
    }
    assert (reward.dtype, reward.shape) == (torch.float32, (4,))
    for flag in (terminated, truncated):
        assert (flag.dtype, flag.shape) == (torch.bool, (4,))
    assert extras["final_obs"].keys() == obs.keys()
    assert env.extras is extras
    assert isinstance(extras["log"], dict)
    assert env.obs_buf is obs


def test_returned_tensors_are_not_written_to_later(slider: Make):
    env = slider(**SHORT)
    kept = []
    for _ in range(7):
        obs, reward, terminated, truncated, extras = env.step(torch.ones(3, 1))
        tensors = [*obs.values(), *extras["final_obs"].values(), reward, terminated, truncated]
        kept.append((tensors, [values.clone() for values in tensors]))
    for tensors, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


# The adapters


def force(k: int) -> np.ndarray:
    return np.array([[0.1], [-0.2], [0.3]]) * (k + 1)


def test_gymnasium_vector(slider: Make):
    vector, twin = GymnasiumVectorEnv(slider(**SHORT)), slider(**SHORT)
    assert isinstance(vector, gymnasium.vector.VectorEnv)
    obs, info = vector.reset(seed=3)
    assert obs in vector.observation_space
    assert info == {}
    finished = 0
    for k in range(5):
        obs, reward, terminated, truncated, info = vector.step(force(k))
        truth = twin.step(torch.from_numpy(force(k)).float())
        assert obs in vector.observation_space
        np.testing.assert_array_equal(obs, truth[0]["policy"])
        np.testing.assert_array_equal(reward, truth[1])
        done = terminated | truncated
        finished += int(done.sum())
        assert ("final_obs" in info) == bool(done.any())
        if "final_obs" in info:
            np.testing.assert_array_equal(info["_final_obs"], done)
            for world in range(3):
                if done[world]:
                    np.testing.assert_array_equal(info["final_obs"][world], truth[4]["final_obs"]["policy"][world])
                    assert info["final_info"]["far"][world] == terminated[world]
                else:
                    assert info["final_obs"][world] is None
    assert finished == 3
    vector.close()
    assert vector.closed


def test_gymnasiums_own_wrappers_take_it(slider: Make):
    vector: Any = GymnasiumVectorEnv(slider(**SHORT))
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector)
    vector = gymnasium.wrappers.vector.RescaleAction(vector, -np.ones(1, np.float32), np.ones(1, np.float32))
    vector = gymnasium.wrappers.vector.DictInfoToList(vector)
    vector.reset(seed=0)
    for _ in range(5):
        *_, info = vector.step(np.zeros((3, 1), np.float32))
    # World 2, at 0.3 m/s, is beyond 0.05 m in step 5; for the others time is up.
    assert [world["episode"]["l"] for world in info] == [5, 5, 5]
    assert info[0]["final_obs"].shape == (3,)


def test_isaac_gym_vec_task(slider: Make):
    task = IsaacGymVecTask(slider(**SHORT))
    assert task.reset_buf.tolist() == [1, 1, 1]
    assert (task.num_obs, task.num_states, task.num_actions) == (3, 4, 1)
    assert task.observation_space.shape == (3,)
    assert task.state_space.shape == (4,)
    obs = task.reset()
    assert {name: tuple(values.shape) for name, values in obs.items()} == {"obs": (3, 3), "states": (3, 4)}
    for k in range(5):
        obs, reward, reset, extras = task.step(torch.from_numpy(force(k)).float())
        finished = reset.nonzero().squeeze(-1)
        assert not task.progress_buf[finished].any()
    assert reset.dtype == torch.long
    assert extras["time_outs"].tolist() == [True, True, False]
    assert torch.equal(obs["obs"], task.env.obs_buf["policy"])
    assert torch.equal(reward, task.rew_buf)
    assert task.reset_done()[1].tolist() == reset.nonzero().squeeze(-1).tolist()
    task.step(task.zero_actions())
    task.reset_idx(torch.tensor([1]))
    assert task.progress_buf[1] == 0
    assert (task.progress_buf[[0, 2]] > 0).all()
    saved = task.get_env_state()
    task.step(task.zero_actions())
    task.set_env_state(saved)
    assert task.progress_buf[1] == 0


def test_legged_gym_task(slider: Make):
    task = LeggedGymTask(slider(**SHORT))
    assert (task.num_obs, task.num_privileged_obs, task.num_actions) == (3, 4, 1)
    obs, privileged = task.reset()
    assert torch.equal(obs, task.get_observations())
    assert torch.equal(privileged, task.get_privileged_observations())
    task.episode_length_buf = torch.tensor([0, 4, 0])
    obs, privileged, reward, done, extras = task.step(torch.zeros(3, 1))
    assert (tuple(obs.shape), tuple(privileged.shape), tuple(reward.shape)) == ((3, 3), (3, 4), (3,))
    assert done.tolist() == [0, 1, 0]
    assert extras["time_outs"].tolist() == [False, True, False]
    assert extras["episode"]["episode/count"] == 1.0
    task.reset_idx(torch.tensor([0]))
    assert task.episode_length_buf.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("module", "needs", "package"),
    [("sb3", "stable_baselines3", "stable-baselines3"), ("rsl_rl", "rsl_rl", "rsl-rl-lib")],
)
def test_a_missing_library_is_answered_with_the_command(
    monkeypatch: pytest.MonkeyPatch, module: str, needs: str, package: str
):
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == needs:
            raise ImportError(f"No module named {needs!r}", name=needs)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, f"tasks.adapters.{module}", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UserError) as error:
        __import__(f"tasks.adapters.{module}")
    assert str(error.value) == f'tasks.adapters.{module} needs {package}; pip install "robolearn[interop]"'


# Stable-Baselines3


def test_sb3_infos(slider: Make):
    pytest.importorskip("stable_baselines3", reason="needs the extra interop")
    from tasks.adapters.sb3 import Sb3VecEnv

    venv, twin = Sb3VecEnv(slider(**SHORT)), slider(**SHORT)
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((3, 3), np.float32)
    total, length, seen = np.zeros(3), np.zeros(3, int), 0
    for k in range(12):
        obs, reward, done, infos = venv.step(force(k))
        truth, _, terminated, truncated, extras = twin.step(torch.from_numpy(force(k)).float())
        total, length = total + reward, length + 1
        np.testing.assert_array_equal(obs, truth["policy"])
        for world, info in enumerate(infos):
            if not done[world]:
                assert info == {}
                continue
            seen += 1
            np.testing.assert_array_equal(info["terminal_observation"], extras["final_obs"]["policy"][world])
            assert info["TimeLimit.truncated"] == bool(truncated[world])
            assert info["TimeLimit.truncated"] != bool(terminated[world])
            assert info["episode"]["l"] == length[world]
            assert info["episode"]["r"] == pytest.approx(total[world])
            total[world] = length[world] = 0
    assert seen >= 5
    assert venv.get_attr("step_dt") == [0.04] * 3
    assert venv.get_attr("step_dt", [1]) == [0.04]
    assert venv.env_method("reset", indices=[0])


def test_sb3_seed_repeats(env_of: Make):
    pytest.importorskip("stable_baselines3", reason="needs the extra interop")
    from tasks.adapters.sb3 import Sb3VecEnv

    venv = Sb3VecEnv(env_of("CartPole-Balance"))
    starts = []
    for seed in (1, 1, 2, None):
        if seed is not None:
            venv.seed(seed)
        starts.append(venv.reset())
    np.testing.assert_array_equal(starts[0], starts[1])
    assert (starts[0] != starts[2]).any()
    assert (starts[2] != starts[3]).any()


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_sb3_trains(env_of: Make, name: str):
    sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra interop")
    from stable_baselines3.common.evaluation import evaluate_policy

    from tasks.adapters.sb3 import Sb3VecEnv

    venv = Sb3VecEnv(env_of("CartPole-Balance", worlds=8, episode_s=1.0))
    small = {"PPO": {"n_steps": 64, "batch_size": 128}, "SAC": {"train_freq": 8, "gradient_steps": 1}}[name]
    model = getattr(sb3, name)("MlpPolicy", venv, device="cpu", seed=0, policy_kwargs={"net_arch": [32]}, **small)
    model.learn(2000)
    assert model.num_timesteps >= 2000
    assert len(model.ep_info_buffer) > 0
    # At most one second of episode, 50 steps of at most 1.2.
    assert all(0 < episode["r"] <= 60 and 0 < episode["l"] <= 50 for episode in list(model.ep_info_buffer))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SB3 warns when it cannot trust the returns
        mean: Any = evaluate_policy(model, venv, n_eval_episodes=8)[0]
    assert 0 < mean <= 60


# rsl_rl


def test_rsl_rl_trains(env_of: Make, tmp_path: Path):
    pytest.importorskip("rsl_rl", reason="needs the extra interop")
    from rsl_rl.runners import OnPolicyRunner

    from tasks.adapters.rsl_rl import RslRlVecEnv

    env = RslRlVecEnv(env_of("Go2-Velocity-Flat", worlds=16))
    network = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu", "obs_normalization": True}
    config = {
        "num_steps_per_env": 8,
        "save_interval": 100,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": network,
    }
    runner = OnPolicyRunner(env, config, log_dir=str(tmp_path), device="cpu")
    runner.learn(3, init_at_random_ep_len=True)
    assert runner.current_learning_iteration == 2
    assert (tmp_path / "model_2.pt").is_file()
    assert int(env.episode_length_buf.max()) > 24  # the runner did spread the episodes
    # rsl_rl steps under inference mode: nothing of that may stick to the environment.
    env.env.step(torch.zeros(16, 12))
    env.env.load_state_dict(env.env.state_dict())
    env.env.reset()


def test_rsl_rl_extras(slider: Make):
    pytest.importorskip("rsl_rl", reason="needs the extra interop")
    from tasks.adapters.rsl_rl import RslRlVecEnv

    env = RslRlVecEnv(slider(**SHORT))
    assert env.get_observations()["critic"].shape == (3, 4)
    assert torch.equal(env.get_observations()["policy"], env.get_observations()["policy"])
    for k in range(5):
        obs, _, done, extras = env.step(torch.from_numpy(force(k)).float())
    assert done.dtype == torch.long
    assert extras["time_outs"].tolist() == [True, True, False]
    assert "reward/position" in extras["log"]
    assert torch.equal(obs["policy"], env.env.obs_buf["policy"])


# skrl


def test_skrl_trains(env_of: Make, tmp_path: Path):
    pytest.importorskip("skrl", reason="needs the extra interop")
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    env: Any = wrap_env(env_of("Go2-Velocity-Flat", worlds=16), wrapper="isaaclab")
    assert (env.num_envs, env.num_agents) == (16, 1)
    spaces: dict[str, Any] = {"observation_space": env.observation_space, "action_space": env.action_space}
    spaces |= {"state_space": env.state_space, "device": env.device}

    class Policy(GaussianMixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net = torch.nn.Linear(self.num_observations, self.num_actions)
            self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: dict, role: str = "") -> tuple[torch.Tensor, dict]:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):
        def __init__(self):
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Linear(self.num_states, 1)

        def compute(self, inputs: dict, role: str = "") -> tuple[torch.Tensor, dict]:
            return self.net(inputs["states"]), {}

    models = {"policy": Policy(), "value": Value()}
    before = models["policy"].net.weight.detach().clone()
    quiet = {"directory": str(tmp_path), "write_interval": 0, "checkpoint_interval": 0}
    settings = {"rollouts": 8, "learning_epochs": 1, "time_limit_bootstrap": True, "experiment": quiet}
    memory = RandomMemory(memory_size=8, num_envs=env.num_envs, device=env.device)
    agent = PPO(models=models, memory=memory, cfg=settings, **spaces)
    silent = {"disable_progressbar": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 24, **silent})
    trainer.train()  # three updates
    assert env.unwrapped.common_step_counter == 24
    after = models["policy"].net.weight
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)
