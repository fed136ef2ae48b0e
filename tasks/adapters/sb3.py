"""The environment as a Stable-Baselines3 vector environment."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from sim.errors import UserError, missing
from tasks.vector_env import Observation, VectorEnv

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ImportError:
    raise missing("tasks.adapters.sb3", "stable-baselines3", "interop") from None


class Sb3VecEnv(VecEnv):
    """The policy group of an environment, in NumPy arrays.

    A world that finished has in its info ``terminal_observation``, the true last observation (D,);
    ``TimeLimit.truncated``, true if it only ran out of time; and ``episode``, its return ``r`` and length ``l``, as
    SB3's ``Monitor`` gives them. The other infos are empty: filling all of them each step would cost more than
    the physics.
    """

    def __init__(self, env: VectorEnv, normalize_action: bool = False):
        """Wrap an environment; its actions may be offered in units of half their range, from -1 to 1."""
        self.env = env
        actions, (self._centre, self._half_range) = env.single_action_space, (0.0, 1.0)
        if normalize_action:
            low, high = torch.from_numpy(actions.low), torch.from_numpy(actions.high)
            self._centre, self._half_range = (low + high) / 2, (high - low) / 2
            actions = Box(-1.0, 1.0, actions.shape, np.float32)
        super().__init__(env.num_envs, env.single_observation_space["policy"], actions)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        self._action: torch.Tensor | None = None
        self.extras: dict[str, Any] = {}
        """What the last step returned besides, for all worlds."""

    def reset(self) -> np.ndarray:
        observation, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        self._returns[:], self._lengths[:] = 0.0, 0
        return _policy(observation)

    def step_async(self, actions: np.ndarray) -> None:
        self._action = self._centre + self._half_range * torch.from_numpy(np.asarray(actions, np.float32))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:  # pyright: ignore
        assert self._action is not None
        observation, reward, terminated, truncated, extras = self.env.step(self._action)
        if not bool(torch.as_tensor(extras.get("valid", True)).all()):
            raise UserError("Stable-Baselines3 cannot leave out rows that are no steps: it needs worlds that are reset "
                            "in the step that ends their episode (autoreset SAME_STEP)")  # fmt: skip
        self.extras = extras
        rewards, dones = reward.cpu().numpy(), (terminated | truncated).cpu().numpy()
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        finished = dones.nonzero()[0]
        if len(finished):
            final, cut = _policy(extras["final_obs"]), truncated.cpu().numpy()
            for i in finished.tolist():
                infos[i]["terminal_observation"] = final[i]
                infos[i]["TimeLimit.truncated"] = bool(cut[i])
                infos[i]["episode"] = {"r": float(self._returns[i]), "l": int(self._lengths[i])}
            self._returns[finished], self._lengths[finished] = 0.0, 0
        return _policy(observation), rewards, dones, infos

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what is known of the running episodes; the environment has a state of its own."""
        return {"returns": torch.from_numpy(self._returns), "lengths": torch.from_numpy(self._lengths)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from a ``state_dict`` of as many worlds."""
        self._returns[:], self._lengths[:] = state["returns"].cpu().numpy(), state["lengths"].cpu().numpy()

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        raise NotImplementedError("the worlds share one environment: set the attribute on its task")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        result = getattr(self.env, method_name)(*args, **kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        return [None] * self.num_envs


def _policy(observation: Observation) -> np.ndarray:
    return observation["policy"].cpu().numpy()
