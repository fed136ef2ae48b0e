"""Stable-Baselines3's algorithms for continuous actions, trained by our loop; their policies are ours."""

import math
from typing import Any, ClassVar

import numpy as np
import torch

from robolearn.algorithms.episodes import EpisodeMeans
from robolearn.algorithms.sb3_config import Sb3OffPolicyConfig, Sb3OnPolicyConfig, arguments, config_class
from robolearn.algorithms.sb3_policy import Actor, GaussianActor, SacActor, Td3Actor, set_statistics
from robolearn.policies.mlp import ACTIVATIONS
from sim.errors import UserError, missing
from sim.memory import check_fits
from tasks.vector_env import VectorEnv

try:
    import stable_baselines3
except ImportError:
    raise missing("an algorithm sb3:NAME", "stable-baselines3", "interop") from None

from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import VecNormalize

from robolearn.algorithms.sb3_hooks import Episodes, Means, in_one_line, restore_statistics, statistics
from tasks.adapters.sb3 import Sb3VecEnv

_COUNTS = ("num_timesteps", "_episode_num", "_n_updates", "_total_timesteps", "_num_timesteps_at_start",
           "_current_progress_remaining")  # fmt: skip
_ARRAYS = ("_last_obs", "_last_episode_starts", "_last_original_obs")
_REPLAY = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class Sb3Algorithm:
    """An SB3 algorithm behind our protocol.

    ``policy`` holds a copy of the actor's weights after each iteration, in the form of our own policies, so that what
    is evaluated, exported or begun from needs nothing of SB3.
    """

    Config: ClassVar[type[Any]]
    learner: ClassVar[type[Any]]
    """SB3's class."""
    Actor: ClassVar[type[Actor]]

    def __init__(self, env: VectorEnv, config: Any, seed: int = 0):
        """Make the networks.

        Raises:
            UserError: SB3 refuses the config or the environment.
        """
        self.config = config
        self._actor = self.Actor(config)
        self._venv = Sb3VecEnv(env, getattr(config, "normalize_action", False))
        self._check(env)
        normalizing = config.normalize_observation or config.normalize_reward
        self._normalizing: VecNormalize | None = None
        if normalizing:
            self._normalizing = VecNormalize(
                self._venv, norm_obs=config.normalize_observation, norm_reward=config.normalize_reward,
                clip_obs=config.clip_observation, gamma=config.gamma,
            )  # fmt: skip
        self.policy = self.policy_for(env, config)
        network = {"net_arch": list(config.hidden), "activation_fn": ACTIVATIONS[config.activation]}
        with in_one_line():
            self.model = self.learner(
                "MlpPolicy", self._normalizing or self._venv, policy_kwargs=network, seed=seed % 2**32,
                device=env.device, **self._arguments(env),
            )  # fmt: skip
        self.model.set_logger(Means())
        self._publish()
        self._given = False
        self.policy.register_load_state_dict_post_hook(self._note_given)

    @classmethod
    def policy_for(cls, env: VectorEnv, config: Any) -> Any:
        """Return the policy alone, with weights of no meaning: it needs no learner and no replay.

        Raises:
            UserError: an action has no range.
        """
        low, high = env.single_action_space.low, env.single_action_space.high
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise UserError("SB3's algorithms need actions with finite limits that differ; here they are "
                            f"{low.tolist()} and {high.tolist()}")  # fmt: skip
        size = sum(env.observation_terms["policy"].values())
        return cls.Actor(config).make(size, torch.from_numpy(low), torch.from_numpy(high)).to(env.device)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one `collect`."""
        rollout = self._rollout_steps()
        return -(-self.config.iteration_steps // rollout) * rollout * self._venv.num_envs

    def collect(self, env: VectorEnv) -> dict[str, float]:
        """Let SB3 step the worlds and learn, and return means over the episodes that ended.

        Raises:
            UserError: SB3 cannot go on, e.g. because the networks are no longer finite.
        """
        self._venv.env = env
        self._adopt()
        means = EpisodeMeans()
        try:
            with in_one_line():
                self.model.learn(
                    self.steps_per_iteration, Episodes(self._venv, means), log_interval=None, reset_num_timesteps=False
                )
        finally:  # an environment may fail in the middle, and what was learned until then is saved
            self._publish()
        return means.result()

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Return the metrics of the gradient steps that `collect` took; the learning is done there.

        Raises:
            UserError: a loss is not finite.
        """
        del progress
        metrics = self.model.logger.means()
        broken = [name for name, value in metrics.items() if name.endswith("loss") and not math.isfinite(value)]
        if broken:
            raise UserError(f"{', '.join(broken)} of the last {self.steps_per_iteration} steps are not finite; "
                            "lower learning_rate, or look for a reward or observation that explodes")  # fmt: skip
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, but for the global generators; arrays are views."""
        self._adopt()
        model, normalizing = self.model, self._normalizing
        parts, tensors = model._get_torch_save_params()
        generator: Any = model.action_space.np_random.bit_generator
        return {
            "policy": self.policy.state_dict(),
            "parts": {name: recursive_getattr(model, name).state_dict() for name in parts},
            "tensors": {name: recursive_getattr(model, name) for name in tensors},
            "counts": {name: getattr(model, name) for name in _COUNTS},
            "arrays": {n: torch.from_numpy(a) for n in _ARRAYS if (a := getattr(model, n)) is not None},
            "random_actions": dict(generator.state),
            "venv": self._venv.state_dict(),
            "normalization": statistics(normalizing) if normalizing else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes.

        Raises:
            UserError: it is that of an imported policy.
        """
        if "parts" not in state:
            raise UserError("an imported run holds a policy and nothing to go on training it with; "
                            "begin a new run from it with --init")  # fmt: skip
        model = self.model
        for name, values in state["parts"].items():
            recursive_getattr(model, name).load_state_dict(values)
        for name, values in state["tensors"].items():
            recursive_getattr(model, name).data.copy_(values)
        for name, value in state["counts"].items():
            setattr(model, name, value)
        for name, values in state["arrays"].items():
            setattr(model, name, values.cpu().numpy())
        model.action_space.np_random.bit_generator.state = state["random_actions"]
        self._venv.load_state_dict(state["venv"])
        if self._normalizing:
            restore_statistics(self._normalizing, state["normalization"])
        self._publish()

    def _publish(self) -> None:
        """Copy what SB3 has learned into our policy."""
        self._actor.take(self.policy, self.model.policy.state_dict())
        if self._normalizing and self._normalizing.norm_obs:
            seen: Any = self._normalizing.obs_rms
            set_statistics(self.policy.normalizer, seen.mean, seen.var, seen.count)

    def _note_given(self, *_: object) -> None:
        self._given = True

    def _adopt(self) -> None:
        """Begin with the policy that was loaded into ours, if one was.

        Raises:
            UserError: it normalises observations, and SB3 is not to.
        """
        if not self._given:
            return
        self._given = False
        self._actor.give(self.policy, self.model.policy.state_dict())
        normalizer = self.policy.normalizer
        if normalizer is None:
            return
        if self._normalizing and self._normalizing.norm_obs:
            seen: Any = self._normalizing.obs_rms
            seen.mean, seen.var = normalizer.mean.cpu().numpy().copy(), normalizer.var.cpu().numpy().copy()
            seen.count = float(normalizer.count)
        elif bool(normalizer.shift.any()) or not bool((normalizer.scale == 1).all()):
            raise UserError("the policy to begin with normalises observations; add --algorithm.normalize-observation")

    def _check(self, env: VectorEnv) -> None:
        """Refuse what SB3 would not notice."""

    def _arguments(self, env: VectorEnv) -> dict[str, Any]:
        """Return the arguments of SB3's constructor."""
        return {name: getattr(self.config, name) for name in arguments(self.learner)}

    def _rollout_steps(self) -> int:
        """Return the steps of each world that SB3 takes at a time."""
        return self.config.n_steps


class Sb3OffPolicy(Sb3Algorithm):
    """An algorithm with a replay and, if asked for, noise on its actions."""

    def state_dict(self) -> dict[str, Any]:
        replay = self.model.replay_buffer
        rows = {name: torch.from_numpy(getattr(replay, name)[: replay.size()]) for name in _REPLAY}
        return super().state_dict() | {"replay": {"rows": rows, "position": replay.pos, "full": replay.full}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        replay, saved = self.model.replay_buffer, state["replay"]
        for name, rows in saved["rows"].items():
            if rows.shape[1:] != getattr(replay, name).shape[1:] or len(rows) > replay.buffer_size:
                raise ValueError(f"a replay of {tuple(rows.shape)} does not fit {getattr(replay, name).shape}")
            getattr(replay, name)[: len(rows)] = rows.cpu().numpy()
        replay.pos, replay.full = saved["position"], saved["full"]

    def _check(self, env: VectorEnv) -> None:
        observation, action = sum(env.observation_terms["policy"].values()), len(env.single_action_space.low)
        size = 4 * self.config.buffer_size * (2 * observation + action + 3)
        what = f"a replay of {self.config.buffer_size:,} transitions"
        check_fits(what, size, torch.device("cpu"), "lower --algorithm.buffer-size")

    def _arguments(self, env: VectorEnv) -> dict[str, Any]:
        given = super()._arguments(env)
        if self.config.action_noise:
            spread = np.full(env.single_action_space.shape, self.config.action_noise)
            given["action_noise"] = NormalActionNoise(np.zeros_like(spread), spread)
        return given

    def _rollout_steps(self) -> int:
        return self.config.train_freq


class SAC(Sb3OffPolicy):
    """SB3's soft actor-critic."""

    learner = stable_baselines3.SAC
    Actor = SacActor
    Config = config_class(Sb3OffPolicyConfig, learner)


class TD3(Sb3OffPolicy):
    """SB3's twin delayed DDPG. SB3 explores with no noise by itself; here it does with the paper's."""

    learner = stable_baselines3.TD3
    Actor = Td3Actor
    Config = config_class(Sb3OffPolicyConfig, learner, hidden=(400, 300), action_noise=0.1)


class DDPG(Sb3OffPolicy):
    """SB3's deep deterministic policy gradient, likewise with noise."""

    learner = stable_baselines3.DDPG
    Actor = Td3Actor
    Config = config_class(Sb3OffPolicyConfig, learner, hidden=(400, 300), action_noise=0.1)


class PPO(Sb3Algorithm):
    """SB3's proximal policy optimisation."""

    learner = stable_baselines3.PPO
    Actor = GaussianActor
    Config = config_class(Sb3OnPolicyConfig, learner, hidden=(64, 64), activation="tanh")


class A2C(Sb3Algorithm):
    """SB3's advantage actor-critic."""

    learner = stable_baselines3.A2C
    Actor = GaussianActor
    Config = config_class(Sb3OnPolicyConfig, learner, hidden=(64, 64), activation="tanh", iteration_steps=500)
