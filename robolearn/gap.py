"""How a policy bears what a real robot adds: delay, friction, payload and noise, one at a time and together."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from robolearn.environments import worlds_of
from robolearn.evaluation import Act, evaluate
from robolearn.training import TrainConfig, make_env
from sim.errors import UserError
from tasks.env import Env
from tasks.registry import task_class
from tasks.task import RobotTask, TaskConfig

FALL = "fell"
"""The termination that counts as a fall."""
FAILURE_SHARE = 0.1
"""Share of episodes that end in a fall from which on a policy counts as failing."""


@dataclass(frozen=True)
class Parameter:
    """One difference between simulation and robot, and the values to try."""

    name: str
    unit: str
    nominal: float
    """The value of the simulation."""
    trained: tuple[float, float]
    """The range that the training drew from."""
    values: tuple[float, ...]
    """What to try, in ascending order, the nominal value among them."""
    apply: Callable[[Any, float], Any]
    """Returns a task's config with a value in place."""


@dataclass(frozen=True)
class Outcome:
    """What came of some episodes, one to a world."""

    episodes: int
    falls: int
    errors: Mapping[str, float]
    """The task's metrics by name, averaged over the time before the end, e.g. ``velocity_error`` in m/s."""

    @property
    def fall_share(self) -> float:
        """Share of the episodes that ended in a fall."""
        return self.falls / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the probability of a fall."""
        return wilson(self.falls, self.episodes)


@dataclass(frozen=True)
class Trial:
    """A combination of values, by parameter name, and what came of it."""

    values: Mapping[str, float]
    outcome: Outcome


@dataclass(frozen=True)
class Trace:
    """One world's episode, up to its fall if it had one.

    ``time`` (T,) s; ``qpos`` (T, nq) of the model; ``height`` (T,) m of the base; ``tilt`` (T,) rad between the base's
    z axis and up; ``velocity`` (T, 2) m/s, planar, in the base frame.
    """

    fell: bool
    time: np.ndarray
    qpos: np.ndarray
    height: np.ndarray
    tilt: np.ndarray
    velocity: np.ndarray


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the interval of a probability seen as `successes` out of `trials` (Wilson 1927); z for 95 % if not given.

    Unlike the normal approximation it is right at 0 and at 1, where it does not shrink to a point.
    """
    share, over = successes / trials, z * z / trials
    centre = (share + over / 2) / (1 + over)
    half = math.sqrt(share * (1 - share) * over + over * over / 4) / (1 + over)
    # Rounding must not put the share itself outside, as it would at 0 and at 1.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def nominal(config: TrainConfig, seconds: float) -> TrainConfig:
    """Return a config whose worlds are all the nominal robot, for episodes of some seconds; noise and pushes stay.

    Raises:
        UserError: the task has neither a robot's friction and mass to vary.
    """
    env: Any = task_class(config.task)(config.env).evaluation_config()
    for field in ("friction", "base_mass"):
        if not hasattr(env, field):
            raise UserError(f"task {config.task} has no {field} to vary; the gap is measured on velocity tasks")
    return replace(config, env=replace(env, friction=(1.0, 1.0), base_mass=(1.0, 1.0), episode_s=seconds))


def parameters(config: TrainConfig) -> tuple[Parameter, ...]:
    """Return control delay, foot friction, payload and sensor noise, with the ranges of a config's training."""
    trained: Any = config.env
    step = trained.physics_dt * 1e3
    mass = _base_mass(config)
    lightest, heaviest = (mass * (factor - 1) for factor in trained.base_mass)
    delay = round(trained.action_delay_s * 1e3 / step) * step
    loads = tuple(round(mass * share, 1) for share in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0))
    return (
        Parameter("control delay", "ms", delay, (delay, delay),
                  tuple(delay + step * n for n in (-4, -2, 0, 2, 4, 6, 8, 10, 13, 16, 20, 24) if delay + step * n >= 0),
                  lambda env, ms: replace(env, action_delay_s=ms / 1e3)),
        Parameter("foot friction", "of nominal", 1.0, trained.friction, (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5),
                  lambda env, factor: replace(env, friction=(factor, factor))),
        Parameter("payload", "kg", 0.0, (lightest, heaviest), (0.0, *loads),
                  lambda env, load: replace(env, base_mass=(1 + load / mass, 1 + load / mass))),
        Parameter("sensor noise", "of trained", 1.0, (1.0, 1.0), (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0),
                  _scale_noise),
    )  # fmt: skip


def with_values(config: TrainConfig, chosen: Sequence[Parameter], values: Mapping[str, float]) -> TrainConfig:
    """Return a config with the parameters set to the values, by name."""
    env: TaskConfig = config.env
    for parameter in chosen:
        env = parameter.apply(env, values[parameter.name])
    return replace(config, env=env)


def measure(act: Act, config: TrainConfig, worlds: int, seed: int = 0) -> Outcome:
    """Run one episode in each of the worlds. The same seed gives the same starts, commands and pushes.

    Raises:
        UserError: the task has no termination ``fell``.
    """
    env = worlds_of(make_env(config, worlds, seed), "gap")
    _needs_falls(env, config.task)
    result = evaluate(act, env, worlds)
    errors = {name: result[name] for name in env.task.metrics()}
    return Outcome(result["episodes"], round(result[FALL] * result["episodes"]), errors)


def sweep(act: Act, config: TrainConfig, parameter: Parameter, worlds: int, seed: int = 0) -> list[Outcome]:
    """Return the outcome at each of a parameter's values, all else as the config has it."""
    return [measure(act, replace(config, env=parameter.apply(config.env, v)), worlds, seed) for v in parameter.values]


def margins(
    parameter: Parameter, outcomes: Sequence[Outcome], share: float = FAILURE_SHARE
) -> tuple[float | None, float | None]:
    """Return the values nearest below and above the nominal one at which a share of the episodes falls.

    Between two tried values the share is taken to change linearly. None where it is not reached within what was tried;
    the nominal value itself if it is reached there.
    """
    start = parameter.values.index(parameter.nominal)
    points = [(value, outcome.fall_share) for value, outcome in zip(parameter.values, outcomes, strict=True)]
    return _crossing(points[start::-1], share), _crossing(points[start:], share)


def margin_text(parameter: Parameter, outcomes: Sequence[Outcome], share: float = FAILURE_SHARE) -> str:
    """Return in words how far the parameter can go from its nominal value, e.g. ``"falls at +23 ms"``."""
    low, high = margins(parameter, outcomes, share)
    if low == parameter.nominal:
        return f"{parameter.name}: falls already at the nominal {parameter.nominal:g} {parameter.unit}"
    ends = [f"{end - parameter.nominal:+.3g} {parameter.unit}" for end in (low, high) if end is not None]
    tried = f"{parameter.values[0]:g} to {parameter.values[-1]:g} {parameter.unit}"
    return f"{parameter.name}: " + (f"falls at {' and '.join(ends)}" if ends else f"bears all that was tried, {tried}")


def borne(parameter: Parameter, outcomes: Sequence[Outcome], share: float = FAILURE_SHARE) -> tuple[float, float]:
    """Return the range of tried values around the nominal one that the policy bears when nothing else differs."""
    low, high = margins(parameter, outcomes, share)
    lowest = parameter.values[0] if low is None else low
    highest = parameter.values[-1] if high is None else high
    return lowest, highest


def search(
    act: Act,
    config: TrainConfig,
    ranges: Mapping[Parameter, tuple[float, float]],
    trials: int,
    worlds: int,
    seed: int = 0,
) -> list[Trial]:
    """Try random combinations of values, uniform in their ranges, and return them, the worst first.

    Worse is more falls, then a larger first metric.
    """
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(trials):
        values = {parameter.name: float(generator.uniform(*limits)) for parameter, limits in ranges.items()}
        found.append(Trial(values, measure(act, with_values(config, list(ranges), values), worlds, seed)))
    return sorted(found, key=lambda t: (t.outcome.falls, *list(t.outcome.errors.values())[:1]), reverse=True)


@torch.no_grad()
def trace(act: Act, config: TrainConfig, worlds: int, seed: int = 0) -> Trace:
    """Return the episode of the world that falls first, or of the last world if none does.

    Raises:
        UserError: the task has no robot, or no termination ``fell``.
    """
    env = worlds_of(make_env(config, worlds, seed), "gap")
    _needs_falls(env, config.task)
    if not isinstance(env.task, RobotTask):
        raise UserError(f"task {config.task} has no robot to follow")
    robot = env.task.robot
    rows: dict[str, list[torch.Tensor]] = {"qpos": [], "height": [], "tilt": [], "velocity": []}
    world, fell = worlds - 1, False
    obs, _ = env.reset()
    for _ in range(env.max_episode_length):
        tilt = torch.acos((-robot.projected_gravity[:, 2]).clamp(-1.0, 1.0))
        state = (env.sim.qpos, robot.base_position[:, 2], tilt, robot.linear_velocity[:, :2])
        for name, value in zip(rows, state, strict=True):
            rows[name].append(value.clone())
        obs, _, _, _, extras = env.step(act(obs["policy"]))
        fallen = extras["terminations"][FALL].nonzero()
        if len(fallen):
            world, fell = int(fallen[0]), True
            break
    arrays = {name: torch.stack(values)[:, world].numpy() for name, values in rows.items()}
    return Trace(fell=fell, time=np.arange(len(arrays["tilt"])) * env.step_dt, **arrays)


def _crossing(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return where the share of points (value, share) is first reached, going along them."""
    if points[0][1] >= share:
        return points[0][0]
    for (value, before), (following, after) in itertools.pairwise(points):
        if after >= share:
            return value + (following - value) * (share - before) / (after - before)
    return None


def _scale_noise(env: Any, factor: float) -> Any:
    # No noise at all would draw no random numbers, and the worlds would meet other commands and pushes.
    return replace(env, noise={name: amplitude * max(factor, 1e-9) for name, amplitude in env.noise.items()})


def _base_mass(config: TrainConfig) -> float:
    task = task_class(config.task)(config.env)
    if not isinstance(task, RobotTask):
        raise UserError(f"task {config.task} has no robot to load")
    return float(task.model().body(task.description.base).mass[0])


def _needs_falls(env: Env, task: str) -> None:
    if FALL not in env.task.terminations():
        raise UserError(f"task {task} has no termination {FALL!r}: falls cannot be counted")
