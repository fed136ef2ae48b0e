"""The shape of every environment: what algorithms, the training loop, evaluation and loading may use of one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import torch

from sim.errors import UserError, unknown
from sim.mirror import Mirror
from tasks.goal import Goal
from tasks.interface import ActionTerm, Interface

Observation = dict[str, torch.Tensor]
"""The groups ``"policy"`` (N, D) and ``"critic"`` (N, Dc), float32, on the environment's device."""
Step = tuple[Observation, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]
"""The observation, reward (N,) float32, terminated (N,) bool, truncated (N,) bool and extras."""


class EnvironmentFailed(UserError):
    """The worlds cannot be stepped any further; what was learned in them so far is sound."""


class VectorEnv(ABC):
    """N worlds on one device, in which finished worlds begin a new episode by themselves.

    The extras of a step hold

    - ``"final_obs"``: the true last observation of the step in every world, before any reset;
    - ``"log"``: numbers by name, means over the episodes that just ended, their number ``episode/count`` among them;
    - ``"terminations"``: named (N,) bool flags, what ended or may end an episode, of this step;
    - ``"metrics"``: named (N,) measures of this step;
    - ``"outcomes"``: named (N,) bool flags of which only those at an episode's last step count, e.g. ``success``;
    - ``"valid"``: (N,) bool, absent where every row is. A row that is not valid is no step of an episode: its action
      was ignored, it only led to a first observation. It must not be learned from or counted, and no return, trace or
      window of steps reaches over it.
    """

    name: str
    """What it is called in a policy's contract."""
    num_envs: int
    """N."""
    device: torch.device
    single_action_space: gymnasium.spaces.Box
    """Bounds (A,), float32."""
    single_observation_space: gymnasium.spaces.Dict
    """A box for each group."""
    action_term: ActionTerm
    """What the actions are."""
    observation_terms: dict[str, dict[str, int]]
    """The size of each term by group and name, in order."""
    obs_buf: Observation
    """The present observation."""
    step_dt: float
    """Time between two actions, s."""
    physics_dt: float
    """Time of a physics step, s; ``step_dt`` where none is known."""
    decimation: int = 1
    """Physics steps to one action."""
    action_delay_s: float = 0.0
    """Time between an action and its effect, s."""
    noise: Mapping[str, float] = MappingProxyType({})
    """Half-width of the uniform noise on the policy's observation terms, by name."""
    max_episode_length: int
    """Steps after which an episode is truncated; 0 where it never is."""
    common_step_counter: int
    """Number of calls of ``step``."""
    goal: Goal | None = None
    """Of a goal-conditioned environment."""
    one_observation: bool = False
    """Whether policy and critic always see the same."""

    @property
    @abstractmethod
    def episode_length_buf(self) -> torch.Tensor:
        """(N,) int64 number of steps since the last reset; may be written to spread out the truncations."""

    @episode_length_buf.setter
    @abstractmethod
    def episode_length_buf(self, values: torch.Tensor) -> None: ...

    @abstractmethod
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Start new episodes and return the observation and the extras; a seed restarts every random generator.

        Args:
            seed: of every random number from here on.
            options: Gymnasium's ``{"reset_mask": (N,) bool}`` resets only the worlds it marks; None resets all.

        Raises:
            UserError: there is no such option, or the mask has the wrong shape.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Apply actions (N, A), clipped to the action space, for one control step.

        Raises:
            UserError: an action, or something that the environment returns for it, is not finite.
            EnvironmentFailed: the worlds cannot be stepped any further.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what can be continued from, as tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict`` of an environment of the same kind and N."""

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Take over from a ``state_dict``, of any N, how far a curriculum has come."""
        del state

    def interface(self) -> Interface:
        """Return what the policy's terms measure and what may be commanded."""
        return Interface()

    def randomisation(self) -> dict[str, tuple[float, float]]:
        """Return the ranges that the worlds are drawn from, by name."""
        return {}

    def log(self) -> dict[str, float]:
        """Return numbers about the environment itself to be logged each iteration, e.g. a curriculum's level."""
        return {}

    def health(self) -> dict[str, float]:
        """Return counts of what went wrong in the worlds, by name."""
        return {}

    def mirrors(self) -> tuple[dict[str, Mirror], Mirror] | None:
        """Return the reflections of the observation groups and of the action, or None without such a symmetry."""
        return None


def reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> torch.Tensor:
    """Return (N,) bool: the worlds that the options of a reset ask for.

    Raises:
        UserError: there is no such option, or the mask has the wrong shape.
    """
    for name in options or {}:
        if name != "reset_mask":
            raise unknown("reset option", name, ["reset_mask"])
    mask = torch.as_tensor((options or {}).get("reset_mask", torch.ones(num_envs, dtype=torch.bool)))
    if mask.shape != (num_envs,) or mask.dtype != torch.bool:
        raise UserError(f"reset_mask must be ({num_envs},) bool, not {tuple(mask.shape)} {mask.dtype}")
    return mask.cpu()
