"""What a task is: a config, and named observations, rewards, terminations and events."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import torch

from sim.errors import UserError
from sim.mirror import Mirror
from sim.robot import Robot
from sim.robot_view import RobotView
from sim.robots import load_robot
from sim.scene import build
from sim.simulation import Simulation
from tasks.events import Event
from tasks.goal import Goal
from tasks.interface import ActionTerm, Interface

Terms = dict[str, torch.Tensor]
"""Tensors by term name, one row for each world; their order is the order in the observation vector."""


def terms(**values: float) -> Any:
    """Return a dataclass field holding one number for each named term, e.g. a weight or a noise amplitude."""
    return field(default_factory=lambda: dict(values))


@dataclass(kw_only=True)
class TaskConfig:
    """What every task can be told."""

    physics_dt: float = 0.005
    """Physics step, s."""
    control_dt: float = 0.02
    """Time between two actions, s; a multiple of physics_dt."""
    episode_s: float = 20.0
    """Length of an episode, s; it is truncated then."""
    weights: dict[str, float] = terms()
    """Weight of each reward term, by name."""
    noise: dict[str, float] = terms()
    """Half-width of the uniform noise on each policy observation term, by name, in the term's unit."""
    action_delay_s: float = 0.0
    """Time between an action and its effect, s; rounded to physics steps."""

    def __post_init__(self) -> None:
        for name in ("physics_dt", "control_dt", "episode_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, not {getattr(self, name)}")
        if not 0 <= self.action_delay_s < math.inf:
            raise UserError(f"action_delay_s must be finite and not negative, not {self.action_delay_s}")
        if self.episode_s < self.control_dt:
            raise UserError(f"episode_s {self.episode_s} s is shorter than control_dt {self.control_dt} s")
        ratio = self.control_dt / self.physics_dt
        if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6 * ratio:
            raise UserError(f"control_dt {self.control_dt} s is not a multiple of physics_dt {self.physics_dt} s")
        for term, amplitude in self.noise.items():
            if not 0 <= amplitude < math.inf:
                raise UserError(f"noise.{term} must be finite and not negative, not {amplitude}")
        for term, weight in self.weights.items():
            if not math.isfinite(weight):
                raise UserError(f"weights.{term} must be finite, not {weight}")

    @property
    def decimation(self) -> int:
        """Physics steps to one action."""
        return round(self.control_dt / self.physics_dt)


@dataclass(kw_only=True)
class RobotTaskConfig(TaskConfig):
    """A task done by one robot of a name or a file, driven through position targets."""

    robot: str = "go2"
    """A bundled robot, or the path of an MJCF or URDF file."""


ConfigT = TypeVar("ConfigT", bound=TaskConfig)


class Task(Generic[ConfigT]):
    """Base of all tasks. A task sees N worlds at once; it knows neither algorithms nor physics engines.

    A subclass states ``observe``, ``rewards`` and ``terminations``, and where it needs them ``setup``, ``reset``,
    ``advance`` and ``randomise``. It is built alone from its config and meets its worlds in ``attach``.
    """

    external_forces: bool = False
    """Whether the task reads ``sim.external_forces()``; its worlds have to be made for that."""
    Config: ClassVar[type[Any]]
    """The class of the config; its defaults are the task's."""
    stage: ClassVar[mujoco.mjtStage] = mujoco.mjtStage.mjSTAGE_NONE
    """How far derived fields and sensors are brought up to date after each step. By default they describe the state
    before the last physics step, as after ``mj_step``; ``mjSTAGE_POS`` makes positions current, ``mjSTAGE_VEL`` also
    velocities, ``mjSTAGE_ACC`` all."""
    config: ConfigT
    sim: Simulation
    """The worlds, after ``attach``."""
    action: torch.Tensor
    """(N, A) the action just applied, clipped to the action space; the previous one is ``last_action``."""
    last_action: torch.Tensor
    """(N, A) the action before it in ``rewards``; in ``observe`` the one just applied. Zero after a reset."""

    def __init__(self, config: ConfigT):
        self.config = config
        self.buffers: dict[str, torch.Tensor] = {}
        self.lasting: set[str] = set()

    # What a subclass states

    def model(self) -> mujoco.MjModel:
        """Return the compiled scene."""
        raise NotImplementedError

    def action_term(self) -> ActionTerm:
        """Return what the actions are; by default the controls of every actuator within its range."""
        model = self.sim.model
        if not model.actuator_ctrllimited.all():
            raise UserError("an actuator of the model has no ctrlrange: actions need finite bounds")
        low, high = model.actuator_ctrlrange.T
        names = tuple(model.actuator(i).name or f"actuator_{i}" for i in range(model.nu))
        ones, zeros = (1.0,) * model.nu, (0.0,) * model.nu
        return ActionTerm(names, "actuator", tuple(low.tolist()), tuple(high.tolist()), ones, zeros)

    def setup(self) -> None:
        """Look up sensors and bodies and make buffers; called once the worlds exist."""

    def observe(self) -> dict[str, Terms]:
        """Return the groups ``"policy"`` and ``"critic"`` of named terms, each (N,) or (N, d)."""
        raise NotImplementedError

    def interface(self) -> Interface:
        """Return what the policy's terms measure and what may be commanded, for the contract of an exported policy."""
        return Interface()

    def rewards(self) -> Terms:
        """Return named reward terms, each (N,), before their weights."""
        raise NotImplementedError

    def terminations(self) -> Terms:
        """Return named flags, each (N,) bool, that end an episode in failure or success."""
        return {}

    def randomise(self) -> Iterable[Event]:
        """Return the events that vary the worlds."""
        return ()

    def reset(self, ids: torch.Tensor) -> None:
        """Write the initial state of the worlds ``ids`` (n,), which are in the model's default state."""

    def before_step(self) -> None:
        """Note what rewards need to know of the state before the action."""

    def advance(self) -> None:
        """Update the task's own buffers after the physics has stepped, before rewards."""

    def renew(self) -> None:
        """Change what is asked, e.g. a command, once the step is rewarded and before the next observation."""

    def log(self) -> dict[str, float]:
        """Return numbers about the task itself to be logged each iteration, e.g. a curriculum's level."""
        return {}

    def metrics(self) -> Terms:
        """Return named measures of how well the task is done, each (N,), that an evaluation averages over time."""
        return {}

    def goal(self) -> Goal | None:
        """Return where goals are in the policy's observation, for hindsight replay, or None without any."""
        return None

    def mirrors(self) -> tuple[dict[str, Mirror], Mirror] | None:
        """Return the reflections of the observation groups and of the action, or None without such a symmetry."""
        return None

    def play_config(self) -> ConfigT:
        """Return the config to show a policy with: no noise, no disturbance. Subclasses strip what is theirs."""
        return type(self.config)(**{**_shallow(self.config), "noise": dict.fromkeys(self.config.noise, 0.0)})

    def evaluation_config(self) -> ConfigT:
        """Return the config to judge a policy with: noise and disturbances stay, a curriculum stands at its end."""
        return self.config

    def progress(self, log: dict[str, float]) -> None:
        """Let a curriculum follow the means of the episodes that just ended, by log name."""

    # What the environment calls

    def attach(self, sim: Simulation, generator: torch.Generator) -> None:
        """Meet the worlds and the generator that every random number of the task comes from."""
        self.sim, self.generator = sim, generator
        self.setup()

    def apply(self, action: torch.Tensor, term: ActionTerm) -> None:
        """Write the controls for clipped actions (N, A)."""
        del term
        self.sim.ctrl[:] = action

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float64, lasting: bool = False) -> torch.Tensor:
        """Return a zero tensor (N, *shape) that checkpoints carry; write to it in place only.

        A world's row is zeroed when the world is reset, before ``reset``, unless the buffer is lasting.
        """
        values = torch.zeros(self.sim.num_worlds, *shape, dtype=dtype, device=self.sim.device)
        self.buffers[name] = values
        if lasting:
            self.lasting.add(name)
        return values

    def level(self, name: str, value: float) -> torch.Tensor:
        """Return a number shared by all worlds, as a tensor () that checkpoints carry; write to it in place only."""
        self.buffers[name] = torch.tensor(value, dtype=torch.float64, device=self.sim.device)
        self.lasting.add(name)
        return self.buffers[name]

    def uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Return float64 numbers of the given shape, uniform in [low, high)."""
        values = torch.rand(*shape, generator=self.generator, device=self.sim.device, dtype=torch.float64)
        return values * (high - low) + low

    def normal(self, *shape: int) -> torch.Tensor:
        """Return float64 standard normal numbers of the given shape."""
        return torch.randn(*shape, generator=self.generator, device=self.sim.device, dtype=torch.float64)


RobotConfigT = TypeVar("RobotConfigT", bound=RobotTaskConfig)


class RobotTask(Task[RobotConfigT]):
    """A task done by one robot, which ``self.robot`` reads; actions are the actuators' own controls."""

    def __init__(self, config: RobotConfigT):
        super().__init__(config)
        self.description: Robot = load_robot(config.robot)

    def model(self) -> mujoco.MjModel:
        return build(self.description, timestep=self.config.physics_dt)

    def attach(self, sim: Simulation, generator: torch.Generator) -> None:
        self.robot = RobotView(sim, self.description)
        super().attach(sim, generator)


class JointPositionTask(RobotTask[RobotConfigT]):
    """A robot task whose actions are joint position targets about the default pose.

    The target of joint j is ``default_position[j] + action_scale * clip(action[j], -1, 1)``.
    """

    action_scale: float = 1.0
    """Joint travel, rad, of an action of 1."""

    def action_term(self) -> ActionTerm:
        joints = self.description.joints
        low, high, scale = ((v,) * len(joints) for v in (-1.0, 1.0, float(self.action_scale)))
        return ActionTerm(joints, "position", low, high, scale, tuple(self.description.default_position))

    def apply(self, action: torch.Tensor, term: ActionTerm) -> None:
        del term
        self.sim.ctrl[:, self.robot.actuators] = self.robot.default_position + action * self.action_scale


def _shallow(config: Any) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config)}
