"""Some worlds of a Gymnasium environment, stepped one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from tasks.adapters.gymnasium_make import make_one, said, shut
from tasks.adapters.gymnasium_spaces import Flattener
from tasks.vector_env import EnvironmentFailed


@dataclass(frozen=True)
class Rows:
    """What a step led to in n worlds."""

    observation: np.ndarray
    """(n, D) float32, the first of the next episode where one ended."""
    final: np.ndarray
    """(n, D) float32, before any reset."""
    reward: np.ndarray
    """(n,) float64."""
    terminated: np.ndarray
    """(n,) bool."""
    truncated: np.ndarray
    """(n,) bool."""
    valid: np.ndarray
    """(n,) bool: false where the row is no step of an episode."""
    infos: np.ndarray
    """(n, K) float64: the named numbers of the step's info, 0 where one is missing."""

    @staticmethod
    def joined(parts: "Sequence[Rows]") -> "Rows":
        """Return the rows of several groups of worlds, one group after the other."""
        names = ("observation", "final", "reward", "terminated", "truncated", "valid", "infos")
        return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @staticmethod
    def first(observation: np.ndarray, infos: int) -> "Rows":
        """Return rows that are not valid and lead to the first observations (n, D) of episodes."""
        n = len(observation)
        no = np.zeros(n, bool)
        return Rows(observation, observation.copy(), np.zeros(n), no, no.copy(), no.copy(), np.zeros((n, infos)))


_PARTS = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}


def parts(answer: Any, method: str, name: str) -> tuple[Any, ...]:
    """Return what an environment answered to ``reset`` or ``step``.

    Raises:
        EnvironmentFailed: it is not the tuple that Gymnasium asks for, but for example that of an older version.
    """
    expected = _PARTS[method]
    if not isinstance(answer, tuple) or len(answer) != len(expected):
        what = f"{len(answer)} values" if isinstance(answer, tuple) else f"{type(answer).__name__}"
        raise EnvironmentFailed(f"{name} returned {what} from {method}, not ({', '.join(expected)})")
    return answer


@dataclass(frozen=True)
class Recipe:
    """How to make one world; plain data, so that a process can be told."""

    env_id: str
    kwargs: Mapping[str, Any]
    infos: tuple[str, ...]
    """The numbers of its infos that are kept."""


class Worlds:
    """n worlds in this thread. Finished ones are reset inside ``step``."""

    def __init__(self, recipe: Recipe, count: int, first: int = 0, made: Sequence[gymnasium.Env] = ()):
        """Make the worlds.

        Args:
            recipe: of each.
            count: n.
            first: number of the first one, for the message of an error.
            made: some that exist already, to begin with.

        Raises:
            UserError: one cannot be made.
        """
        self._recipe, self._first = recipe, first
        self.envs = [*made[:count]]
        while len(self.envs) < count:
            self.envs.append(make_one(recipe.env_id, recipe.kwargs))
        env = self.envs[0]
        self._flattener = Flattener(env.observation_space, recipe.env_id)
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        self._shape, self._dtype = env.action_space.shape, env.action_space.dtype
        self._now = np.zeros((count, self._flattener.size), np.float32)

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
        """Begin new episodes where ``mask`` (n,) says so, and return the present observations (n, D).

        Raises:
            EnvironmentFailed: a world raises.
        """
        for i in mask.nonzero()[0].tolist():
            self._reset(i, seeds[i])
        return self._now.copy()

    def step(self, action: np.ndarray, last: np.ndarray) -> Rows:
        """Apply actions (n, A), and truncate the episodes marked in ``last`` (n,) after it.

        Raises:
            EnvironmentFailed: a world raises, or returns what its spaces do not say.
        """
        n, names = len(self.envs), self._recipe.infos
        final, reward, infos = np.empty_like(self._now), np.empty(n), np.zeros((n, len(names)))
        terminated, truncated = np.empty(n, bool), last.copy()
        for i, env in enumerate(self.envs):
            given = action[i].reshape(self._shape).astype(self._dtype)
            try:
                observation, paid, terminated[i], cut, info = parts(env.step(given), "step", self._recipe.env_id)
                reward[i] = self._number(paid)
                truncated[i] = (truncated[i] or cut) and not terminated[i]
                self._flattener.write(observation, final[i])
                for k, name in enumerate(names):
                    infos[i, k] = info.get(name, 0.0)
            except EnvironmentFailed as error:
                raise EnvironmentFailed(f"{error}, in world {self._first + i}") from None
            except Exception as error:  # the environment's own code may raise anything
                raise EnvironmentFailed(self._where("step", i, error)) from error
        self._now[:] = final
        for i in (terminated | truncated).nonzero()[0].tolist():
            self._reset(i, None)
        return Rows(self._now.copy(), final, reward, terminated, truncated, np.ones(n, bool), infos)

    def close(self) -> None:
        """Close every world."""
        for env in self.envs:
            shut(env, self._recipe.env_id)

    def _number(self, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFailed(f"{self._recipe.env_id} returned the reward {reward!r}, not a number") from None

    def _reset(self, i: int, seed: int | None) -> None:
        try:
            observation, _ = parts(self.envs[i].reset(seed=seed), "reset", self._recipe.env_id)
            self._flattener.write(observation, self._now[i])
        except EnvironmentFailed as error:
            raise EnvironmentFailed(f"{error}, in world {self._first + i}") from None
        except Exception as error:  # the environment's own code may raise anything
            raise EnvironmentFailed(self._where("reset", i, error)) from error

    def _where(self, method: str, i: int, error: Exception) -> str:
        return f"{self._recipe.env_id} raised in {method} of world {self._first + i}: {said(error)}"
