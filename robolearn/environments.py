"""Where environments come from: tasks in simulations of ours, or Gymnasium."""

from typing import Any, Literal, Protocol

from sim.backends import BACKENDS, make_simulation
from sim.errors import UserError, unknown
from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_make import exists, find
from tasks.env import Env
from tasks.registry import task_class
from tasks.task import TaskConfig
from tasks.vector_env import VectorEnv

GYMNASIUM = "gymnasium"
"""The name in place of a physics backend's that asks for a Gymnasium environment."""
SIMS = (*BACKENDS, GYMNASIUM)
"""What ``--sim`` takes."""


class Source(Protocol):
    """Makes environments of names."""

    name: Literal["tasks", "gymnasium"]

    def config(self, name: str) -> Any:
        """Return the default config of an environment.

        Raises:
            UserError: there is no such environment.
        """
        ...

    def make(
        self, name: str, config: Any, sim: str, num_envs: int, seed: int, device: str, threads: int, draws: bool
    ) -> VectorEnv:
        """Return N worlds; ``draws`` asks for ones that can be drawn.

        Raises:
            UserError: they cannot be made.
        """
        ...

    def evaluation_config(self, name: str, config: Any) -> Any:
        """Return the config to judge a policy with."""
        ...

    def play_config(self, name: str, config: Any) -> Any:
        """Return the config to show a policy with."""
        ...

    def everywhere(self) -> str:
        """Return the backend that every machine has."""
        ...


class Tasks:
    """Our tasks, and those of a user, by name or path/to/file.py:Class."""

    name: Literal["tasks", "gymnasium"] = "tasks"

    def config(self, name: str) -> TaskConfig:
        try:
            return task_class(name).Config()
        except UserError:
            if ".py" not in name and exists(name):
                raise UserError(f"{name} is a Gymnasium environment: add --sim {GYMNASIUM}") from None
            raise

    def make(
        self, name: str, config: Any, sim: str, num_envs: int, seed: int, device: str, threads: int, draws: bool
    ) -> Env:
        del draws  # they always can
        if not isinstance(config, TaskConfig):
            raise UserError(f"{name} is a Gymnasium environment and no task of a backend {sim!r}")
        task = task_class(name)(config)
        simulation = make_simulation(sim, task.model(), num_envs, device, threads or None, task.external_forces)
        return Env(task, simulation, seed)

    def evaluation_config(self, name: str, config: TaskConfig) -> TaskConfig:
        return task_class(name)(config).evaluation_config()

    def play_config(self, name: str, config: TaskConfig) -> TaskConfig:
        return task_class(name)(config).play_config()

    def everywhere(self) -> str:
        return "mujoco"


class Gymnasium:
    """Gymnasium's environments by id."""

    name: Literal["tasks", "gymnasium"] = "gymnasium"

    def config(self, name: str) -> GymnasiumConfig:
        find(name)
        return GymnasiumConfig()

    def make(
        self, name: str, config: Any, sim: str, num_envs: int, seed: int, device: str, threads: int, draws: bool
    ) -> VectorEnv:
        del sim, threads
        from tasks.adapters.gymnasium_env import make_gymnasium

        if not isinstance(config, GymnasiumConfig):
            raise UserError(f"{name} is a task of our own and no Gymnasium environment")
        return make_gymnasium(name, config, num_envs, seed, device, "rgb_array" if draws else None)

    def evaluation_config(self, name: str, config: GymnasiumConfig) -> GymnasiumConfig:
        del name
        return config

    def play_config(self, name: str, config: GymnasiumConfig) -> GymnasiumConfig:
        del name
        return config

    def everywhere(self) -> str:
        return GYMNASIUM


_TASKS, _GYMNASIUM = Tasks(), Gymnasium()


def source_of(sim: str) -> Source:
    """Return where the environments of a ``--sim`` come from.

    Raises:
        UserError: there is no such backend.
    """
    if sim not in SIMS:
        raise unknown("backend", sim, SIMS)
    return _GYMNASIUM if sim == GYMNASIUM else _TASKS


def worlds_of(env: VectorEnv, what: str) -> Env:
    """Return an environment as one whose MuJoCo worlds can be reached.

    Args:
        env: an environment.
        what: what needs the worlds, for the message of the error.

    Raises:
        UserError: it has none.
    """
    if not isinstance(env, Env):
        raise UserError(f"{what} needs a task of our own; the worlds of {env.name} are its package's affair")
    return env
