"""Other people's environments in the shape of ours: any Gymnasium environment with a Box of real actions."""

import math
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from sim.errors import UserError
from sim.render import offscreen_backend
from tasks.adapters.gymnasium_config import GymnasiumConfig
from tasks.adapters.gymnasium_goal import goal_of
from tasks.adapters.gymnasium_make import find, make_one, make_vector, said
from tasks.adapters.gymnasium_spaces import Flattener, action_bounds
from tasks.adapters.gymnasium_stepper import VectorStepper
from tasks.adapters.gymnasium_workers import Stepper, make_stepper
from tasks.adapters.gymnasium_worlds import Recipe, Rows, parts
from tasks.goal import Goal
from tasks.interface import ActionTerm
from tasks.vector_env import EnvironmentFailed, Observation, Step, VectorEnv, reset_mask

SUCCESS = "success"
"""The outcome that an info's ``is_success`` or ``success`` becomes."""
_SUCCESS_NAMES = ("is_success", "success")


class GymnasiumEnv(VectorEnv):
    """N worlds of a Gymnasium environment.

    Policy and critic see the same. The numbers in the infos are metrics, those that are true or false outcomes. A
    checkpoint holds no world's inner state: after ``load_state_dict`` the first step is not valid in any world and
    leads to the first observations of new episodes.
    """

    render_mode = None
    one_observation = True

    def __init__(
        self,
        name: str,
        stepper: Stepper,
        num_envs: int,
        flattener: Flattener,
        bounds: gymnasium.spaces.Box,
        infos: Mapping[str, bool],
        step_dt: float,
        limit: int = 0,
        seed: int = 0,
        device: str = "cpu",
        goal: Goal | None = None,
        one: gymnasium.Env | None = None,
    ):
        """Put the parts together; `make_gymnasium` and `from_vector` know where they come from.

        Args:
            name: the environment's id.
            stepper: steps the worlds.
            num_envs: N.
            flattener: of its observations.
            bounds: of its actions, (A,).
            infos: the numbers in its infos, and whether each is an outcome.
            step_dt: time between two actions, s.
            limit: steps after which episodes are truncated, 0 for none.
            seed: decides the worlds.
            device: where observations and rewards go.
            goal: its goals.
            one: one world in this process, which the stepper closes.
        """
        self.name, self.num_envs, self.device = name, num_envs, torch.device(device)
        self._stepper, self.one, self.goal = stepper, one, goal
        self._flattener, self._infos = flattener, dict(infos)
        self.step_dt = self.physics_dt = step_dt
        self.max_episode_length, self.max_episode_length_s = limit, limit * step_dt
        self.single_action_space = bounds
        self.action_space = batch_space(bounds, num_envs)
        self._low, self._high = torch.from_numpy(bounds.low), torch.from_numpy(bounds.high)
        n = len(bounds.low)
        self.action_term = ActionTerm(
            tuple(f"action_{i}" for i in range(n)), "actuator", tuple(bounds.low.tolist()),
            tuple(bounds.high.tolist()), (1.0,) * n, (0.0,) * n,
        )  # fmt: skip
        self.observation_terms = {group: dict(flattener.terms) for group in ("policy", "critic")}
        box = gymnasium.spaces.Box(-np.inf, np.inf, (flattener.size,), np.float32)
        self.single_observation_space = gymnasium.spaces.Dict({"policy": box, "critic": box})
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.common_step_counter = 0
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        self._sums = np.zeros((1 + len(infos), num_envs))
        """Of the reward and of each number over the episode so far."""
        self._counted = np.zeros(num_envs, np.int64)
        """Steps that the sums are over: fewer than the length where an episode was said to have begun earlier."""
        self._resumed = False
        self.seed(seed)
        self._begin(np.ones(num_envs, bool), anew=True)

    @property
    def unwrapped(self) -> "GymnasiumEnv":
        """This environment: there is nothing around it."""
        return self

    @property
    def episode_length_buf(self) -> torch.Tensor:
        return self._length.to(self.device)

    @episode_length_buf.setter
    def episode_length_buf(self, values: torch.Tensor) -> None:
        self._length.copy_(values)

    def seed(self, seed: int) -> None:
        """Restart the generator that the worlds' seeds come from; they take effect with a reset of all worlds."""
        self._seed = seed
        self._seeds = np.random.default_rng(seed)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        mask = reset_mask(options, self.num_envs).numpy()
        if seed is not None:
            self.seed(seed)
        self._begin(mask, anew=seed is not None)
        return self.obs_buf, self.extras

    def step(self, action: torch.Tensor) -> Step:
        given = self._checked(action)
        if self._resumed:
            self._resumed = False
            rows = Rows.first(self.obs_buf["policy"].cpu().numpy(), len(self._infos))
        else:
            last = (self._length.numpy() + 1 >= self.max_episode_length) & (self.max_episode_length > 0)
            rows = self._stepper.step(given, last)
            self._check(rows.reward, "reward", None)
            self._check(rows.final, "observation", self._flattener.columns)
            self._check(rows.observation, "observation", self._flattener.columns)
        self._sums += np.concatenate((rows.reward[None], rows.infos.T))
        self._counted += 1
        self._length += 1
        done = rows.terminated | rows.truncated
        log = self._log(rows, done) if done.any() else {}
        self._forget(done | ~rows.valid)
        self.common_step_counter += 1
        self.obs_buf = self._groups(rows.observation)
        terminated, truncated = self._tensor(rows.terminated), self._tensor(rows.truncated)
        measures = {name: self._tensor(rows.infos[:, k]) for k, name in enumerate(self._infos)}
        self.extras = {
            "log": log,
            "final_obs": self._groups(rows.final) if done.any() else self.obs_buf,
            "terminations": {"terminated": terminated},
            "metrics": {name: measures[name] for name, outcome in self._infos.items() if not outcome},
            "outcomes": {_outcome(name): measures[name] > 0.5 for name, outcome in self._infos.items() if outcome},
        }
        if not rows.valid.all():
            self.extras["valid"] = self._tensor(rows.valid)
        return self.obs_buf, self._tensor(rows.reward.astype(np.float32)), terminated, truncated, self.extras

    def render(self) -> np.ndarray:
        """Return a picture (H, W, 3) uint8 of the first world, if it is stepped here and made to draw.

        Raises:
            UserError: the environment draws nothing.
        """
        try:
            picture = None if self.one is None else self.one.render()
        except Exception as error:  # the environment's own code may raise anything
            raise UserError(f"{self.name} cannot draw itself: {said(error)}") from error
        if not isinstance(picture, np.ndarray):
            raise UserError(f"{self.name} draws no pictures: it has no render mode rgb_array")
        return picture

    def close(self) -> None:
        self._stepper.close()

    def health(self) -> dict[str, float]:
        return {"worlds/restarts": float(self._stepper.restarts)} if self._stepper.restarts else {}

    def state_dict(self) -> dict[str, Any]:
        return {"common_step_counter": self.common_step_counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.common_step_counter = state["common_step_counter"]
        # Other episodes than those that the training began with, and always the same ones.
        self._seeds = np.random.default_rng([self._seed, self.common_step_counter])
        self._begin(np.ones(self.num_envs, bool), anew=True)
        self._resumed = True

    def _begin(self, mask: np.ndarray, anew: bool) -> None:
        """Begin new episodes in the worlds of ``mask`` (N,), with other seeds if ``anew``."""
        seeds: list[int | None] = self._seeds.integers(2**31, size=self.num_envs).tolist()
        mask = mask.copy()  # the stepper may mark others too
        observation = self._stepper.reset(mask, seeds if anew else [None] * self.num_envs)
        self._check(observation, "observation", self._flattener.columns)
        self._resumed = False
        self._forget(mask)
        self.obs_buf = self._groups(observation)
        self.extras = {"log": {}, "final_obs": self.obs_buf, "terminations": {}, "metrics": {}, "outcomes": {}}

    def _forget(self, mask: np.ndarray) -> None:
        self._sums[:, mask], self._counted[mask] = 0.0, 0
        self._length[torch.from_numpy(mask)] = 0

    def _log(self, rows: Rows, done: np.ndarray) -> dict[str, float]:
        """Return means over the episodes that just ended in the worlds of ``done`` (N,)."""
        log = {
            "episode/count": float(done.sum()),
            "episode/length": float(self._length.numpy()[done].mean()),
            "episode/return": float(self._sums[0, done].mean()),
            "termination/terminated": float(rows.terminated[done].mean()),
            "termination/time_out": float(rows.truncated[done].mean()),
        }
        for k, (name, outcome) in enumerate(self._infos.items()):
            if outcome:
                log[f"outcome/{_outcome(name)}"] = float((rows.infos[done, k] > 0.5).mean())
            else:
                log[f"metric/{name}"] = float((self._sums[1 + k, done] / self._counted[done]).mean())
        return log

    def _checked(self, action: torch.Tensor) -> np.ndarray:
        """Return actions (N, A), clipped.

        Raises:
            UserError: they have another shape or are not finite.
        """
        action = action.detach().cpu()
        if action.shape != (self.num_envs, len(self._low)):
            theirs, ours = tuple(action.shape), (self.num_envs, len(self._low))
            raise UserError(f"action has shape {theirs}, this environment takes {ours}")
        if not torch.isfinite(action).all():
            world = int((~torch.isfinite(action)).any(1).nonzero()[0])
            raise UserError(f"action is not finite in world {world} at step {self.common_step_counter}: "
                            f"{action[world].tolist()}")  # fmt: skip
        return torch.clamp(action.float(), self._low, self._high).numpy()

    def _check(self, values: np.ndarray, what: str, columns: Mapping[str, slice] | None) -> None:
        """Refuse what is not finite: (N,), or (N, D) of named columns."""
        if math.isfinite(values.sum(dtype=np.float64)):
            return
        place = np.argwhere(~np.isfinite(values))
        if not len(place):  # the sum alone overflows
            return
        world = int(place[0][0])
        if columns is not None:
            name, part = next((n, c) for n, c in columns.items() if c.start <= place[0][1] < c.stop)
            what = f"{what} {name}[{int(place[0][1]) - part.start}]"
        value = float(values[tuple(place[0])])
        raise EnvironmentFailed(f"{self.name} returned a value that is not finite: {what} is {value} in world {world} "
                                f"at step {self.common_step_counter}")  # fmt: skip

    def _groups(self, rows: np.ndarray) -> Observation:
        policy = self._tensor(rows)
        return {"policy": policy, "critic": policy}

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


def make_gymnasium(
    env_id: str,
    config: GymnasiumConfig,
    num_envs: int = 1,
    seed: int = 0,
    device: str = "cpu",
    render_mode: str | None = None,
) -> GymnasiumEnv:
    """Return N worlds of a Gymnasium environment.

    Args:
        env_id: e.g. ``HalfCheetah-v5``; ``module:Id-v0`` imports the module that registers it first.
        config: its settings.
        num_envs: N.
        seed: decides the worlds.
        device: where observations and rewards go.
        render_mode: what the worlds are drawn as.

    Raises:
        UserError: there is no such environment, it cannot be made, or its spaces are not supported.
        EnvironmentFailed: a world raises or returns what is not finite.
    """
    spec = find(env_id)
    kwargs = dict(config.kwargs)
    if "max_episode_steps" in kwargs:
        raise UserError("kwargs.max_episode_steps is set by max_steps: --env.max-steps N")
    if spec.entry_point is None and spec.vector_entry_point is not None:
        if config.max_steps:
            raise UserError(f"max_steps: {env_id} steps all of its worlds itself, and ends episodes where it does")
        return from_vector(make_vector(env_id, num_envs, kwargs), env_id, seed, device)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
        # What MuJoCo's environments draw with; on a machine without a display their own search may crash.
        if backend := offscreen_backend():
            os.environ.setdefault("MUJOCO_GL", backend)
    one = make_one(env_id, kwargs)
    try:
        flattener, bounds = Flattener(one.observation_space, env_id), action_bounds(one.action_space, env_id)
        infos = _numbers(_probed(one, env_id), ())
        stepper = make_stepper(config.worlds, Recipe(env_id, kwargs, tuple(infos)), num_envs, config.workers, (one,))
    except BaseException:
        one.close()
        raise
    limit = config.max_steps or spec.max_episode_steps or 0
    goal, dt = goal_of(one, flattener), _step_dt(one.unwrapped)
    return GymnasiumEnv(env_id, stepper, num_envs, flattener, bounds, infos, dt, limit, seed, device, goal, one)


def from_vector(env: gymnasium.vector.VectorEnv, name: str, seed: int = 0, device: str = "cpu") -> GymnasiumEnv:
    """Return a Gymnasium vector environment in our shape, in whichever way it begins new episodes.

    Raises:
        UserError: its spaces are not supported.
        EnvironmentFailed: it raises or returns what is not finite.
    """
    flattener = Flattener(env.single_observation_space, name)
    bounds = action_bounds(env.single_action_space, name)
    infos = _numbers(_probed(env, name), (env.num_envs,))
    stepper = VectorStepper(env, name, flattener, tuple(infos))
    return GymnasiumEnv(name, stepper, env.num_envs, flattener, bounds, infos, _step_dt(env), 0, seed, device)


def _probed(env: Any, name: str) -> dict[str, Any]:
    """Return the info of a step, after which the environment has to be reset.

    Raises:
        EnvironmentFailed: it raises.
    """
    space, method = env.action_space, "reset"
    try:
        parts(env.reset(seed=0), "reset", name)
        method = "step"
        action = ((space.low.astype(np.float64) + space.high) / 2).astype(space.dtype)
        return parts(env.step(action), "step", name)[-1]
    except EnvironmentFailed:
        raise
    except Exception as error:  # the environment's own code may raise anything
        raise EnvironmentFailed(f"{name} raised in its first {method}: {said(error)}") from error


def _numbers(info: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, bool]:
    """Return the names in an info that are numbers of a shape, and whether each is an outcome: true or false."""
    found = {}
    for name, value in info.items():
        array = np.asarray(value) if isinstance(value, bool | int | float | np.generic | np.ndarray) else None
        if array is None or name.startswith("_") or array.shape != shape or array.dtype.kind not in "biuf":
            continue
        found[name] = array.dtype.kind == "b" or name in _SUCCESS_NAMES
    return found


def _outcome(name: str) -> str:
    return SUCCESS if name in _SUCCESS_NAMES else name


def _step_dt(env: Any) -> float:
    """Return the time between two actions: ``dt`` where the environment states it, else one picture, else 1 s."""
    candidates = [getattr(env, "dt", None)]
    fps = (env.metadata or {}).get("render_fps")
    if isinstance(fps, int | float) and fps > 0:
        candidates.append(1 / fps)
    for value in candidates:
        if isinstance(value, int | float | np.number) and 0 < value < math.inf:
            return float(value)
    return 1.0
