"""The environment: a task in N worlds, in the shape of Isaac Lab's environments."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sim.errors import UserError
from sim.mirror import Mirror
from sim.simulation import Simulation
from tasks.events import Event
from tasks.interface import Interface
from tasks.observations import Observations
from tasks.rewards import Rewards
from tasks.task import Task
from tasks.vector_env import Observation, Step, VectorEnv, reset_mask


class Env(VectorEnv):
    """A task in N worlds. Finished worlds are reset inside ``step`` (autoreset SAME_STEP), so every row is valid."""

    render_mode = None

    def __init__(self, task: Task[Any], sim: Simulation, seed: int = 0):
        """Put a task into the worlds of a simulation made for its model.

        Raises:
            UserError: the task states a term of the wrong shape, a weight or noise for a term that does not exist,
                or an event for an object that does not exist.
        """
        self.task, self.sim, self.cfg, self.name = task, sim, task.config, type(task).__name__
        self.num_envs, self.device = sim.num_worlds, sim.device
        self.physics_dt, self.step_dt = sim.timestep, task.config.control_dt
        self.decimation, self.noise = task.config.decimation, task.config.noise
        self.max_episode_length_s = task.config.episode_s
        self.max_episode_length = round(task.config.episode_s / task.config.control_dt)
        self.metadata: dict[str, Any] = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": [],
            "render_fps": round(1 / self.step_dt),
        }
        self.common_step_counter = 0
        self.diverged_worlds = 0
        """Number of resets of worlds whose physics diverged."""

        self._generator = torch.Generator(self.device).manual_seed(seed)
        task.attach(sim, self._generator)
        self.action_term = task.action_term()
        low, high = (np.asarray(v, np.float32) for v in (self.action_term.low, self.action_term.high))
        self._low, self._high = torch.from_numpy(low).to(self.device), torch.from_numpy(high).to(self.device)
        self.single_action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

        n, a = self.num_envs, len(low)
        task.action, task.last_action = task.buffer("action", a), task.buffer("last_action", a)
        delay = round(task.config.action_delay_s / self.physics_dt)
        self.action_delay_s = delay * self.physics_dt
        self._delay_steps, self._delay_substeps = divmod(delay, task.config.decimation)
        self._queue = task.buffer("action_queue", self._delay_steps + 2, a)
        self._episode_length = task.buffer("episode_length", dtype=torch.int64)

        self._events = list(task.randomise())
        self._timers = task.buffer("event_timers", len(self._events), lasting=True)
        self._all = torch.arange(n, device=self.device)
        for event in self._events:
            event.change.operation(task, self._all[:0])
            if event.when == "start":
                event.change.operation(task, self._all)
        self._reset_worlds(self._all)
        self.observations = Observations(task, self._generator)
        self.rewards = Rewards(task)
        self.observation_terms = self.observations.terms
        self.one_observation = self.observations.one
        self.goal = task.goal()
        self.single_observation_space = gymnasium.spaces.Dict({
            group: gymnasium.spaces.Box(-np.inf, np.inf, (sum(sizes.values()),), np.float32)
            for group, sizes in self.observation_terms.items()
        })  # fmt: skip
        self.observation_space = batch_space(self.single_observation_space, n)
        zeros = torch.zeros(n, dtype=torch.float64, device=self.device)
        self._metric_sums = {name: zeros.clone() for name in task.metrics()}
        self._metric_steps = zeros.clone()
        self.extras: dict[str, Any] = {"log": {}}
        self.obs_buf = self.observations.compute(self.common_step_counter)

    @property
    def unwrapped(self) -> "Env":
        """This environment: there is nothing around it."""
        return self

    @property
    def episode_length_buf(self) -> torch.Tensor:
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, values: torch.Tensor) -> None:
        self._episode_length.copy_(values)

    def seed(self, seed: int) -> None:
        """Restart the generator that every random number of the environment comes from."""
        self._generator.manual_seed(seed)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        mask = reset_mask(options, self.num_envs).to(self.device)
        if seed is not None:
            self.seed(seed)
        ids = mask.nonzero().squeeze(1)
        self._reset_worlds(ids)
        self._forget(ids)
        self.obs_buf = _merge(mask, self.observations.compute(self.common_step_counter), self.obs_buf)
        self.extras = {"log": {}, "final_obs": self.obs_buf, "terminations": {}, "metrics": {}, "outcomes": {}}
        return self.obs_buf, self.extras

    def step(self, action: torch.Tensor) -> Step:
        task = self.task
        self._act(action)
        self._episode_length += 1
        diverged = self.sim.diverged()
        any_diverged = bool(diverged.any())
        task.advance()
        terminated = diverged.clone()
        flags = task.terminations()
        for flag in flags.values():
            terminated |= flag
        truncated = (self._episode_length >= self.max_episode_length) & ~terminated
        reward = self.rewards.compute(self.common_step_counter, diverged if any_diverged else None)
        metrics = task.metrics()
        if any_diverged:
            metrics = {name: torch.where(diverged, 0.0, value) for name, value in metrics.items()}
        for name, value in metrics.items():
            self._metric_sums[name] += value
        self._metric_steps += 1
        task.last_action.copy_(task.action)

        self._interval_events()
        task.renew()
        final = self.observations.compute(self.common_step_counter, self.obs_buf, diverged if any_diverged else None)
        done = terminated | truncated
        log: dict[str, float] = {}
        observation = final
        if bool(done.any()):
            ids = done.nonzero().squeeze(1)
            log = self._log(ids, flags, truncated)
            task.progress(log)
            self.diverged_worlds += int(diverged.sum())
            self._reset_worlds(ids)
            self._forget(ids)
            observation = _merge(done, self.observations.compute(self.common_step_counter), final)
        self.obs_buf = observation
        self.common_step_counter += 1
        self.extras = {"log": log, "final_obs": final, "terminations": flags, "metrics": metrics, "outcomes": {}}
        return observation, reward, terminated, truncated, self.extras

    def close(self) -> None:
        """Nothing is held that needs closing."""

    def interface(self) -> Interface:
        return self.task.interface()

    def randomisation(self) -> dict[str, tuple[float, float]]:
        return {e.change.name: e.change.limits for e in self._events if e.change.limits is not None}

    def log(self) -> dict[str, float]:
        return self.task.log()

    def health(self) -> dict[str, float]:
        counts = {f"physics/warning_{name}": float(n) for name, n in self.sim.drain_warnings().items()}
        return counts | {"physics/diverged_worlds": float(self.diverged_worlds)}

    def mirrors(self) -> tuple[dict[str, Mirror], Mirror] | None:
        return self.task.mirrors()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors and numbers."""
        return {
            "sim": self.sim.state_dict(),
            "buffers": {name: values.clone() for name, values in self.task.buffers.items()},
            "episode_sums": self.rewards.episode_sums.clone(),
            "metric_sums": {name: values.clone() for name, values in self._metric_sums.items()},
            "metric_steps": self._metric_steps.clone(),
            "generator": self._generator.get_state(),
            "observation": dict(self.obs_buf),
            "common_step_counter": self.common_step_counter,
            "diverged_worlds": self.diverged_worlds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict`` of an environment of the same task and N.

        Raises:
            UserError: the state has another number of worlds or other buffers.
        """
        theirs = {name: tuple(values.shape) for name, values in state["buffers"].items()}
        ours = {name: tuple(values.shape) for name, values in self.task.buffers.items()}
        if theirs != ours:
            differing = sorted(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
            raise UserError(f"the saved environment does not fit this one: {', '.join(differing)} differ in shape; "
                            "resume with the task, num_envs and settings of the saved run")  # fmt: skip
        self.sim.load_state_dict(state["sim"])
        for name, values in state["buffers"].items():
            self.task.buffers[name].copy_(values)
        self.rewards.episode_sums.copy_(state["episode_sums"])
        for name, values in state["metric_sums"].items():
            self._metric_sums[name].copy_(values)
        self._metric_steps.copy_(state["metric_steps"])
        self._generator.set_state(state["generator"])
        self.obs_buf = dict(state["observation"])
        self.common_step_counter = state["common_step_counter"]
        self.diverged_worlds = state["diverged_worlds"]

    def load_progress(self, state: Mapping[str, Any]) -> None:
        for name, value in state["buffers"].items():
            if value.dim() == 0 and name in self.task.buffers:
                self.task.buffers[name].copy_(value)

    def _act(self, action: torch.Tensor) -> None:
        """Clip the action and step the physics under it, from its delay on; under the earlier ones before that."""
        task, decimation = self.task, self.task.config.decimation
        action = action.detach().to(self.device)
        if action.shape != task.action.shape:
            theirs, ours = tuple(action.shape), tuple(task.action.shape)
            raise UserError(f"action has shape {theirs}, this environment takes {ours}")
        if not torch.isfinite(action).all():
            world = int((~torch.isfinite(action)).any(1).nonzero()[0])
            raise UserError(f"action is not finite in world {world} at step {self.common_step_counter}: "
                            f"{action[world].tolist()}")  # fmt: skip
        task.action.copy_(torch.clamp(action, self._low, self._high))
        task.before_step()
        if self._delay_steps or self._delay_substeps:
            self._queue[:, 1:] = self._queue[:, :-1].clone()
            self._queue[:, 0] = task.action
            if self._delay_substeps:
                task.apply(self._queue[:, self._delay_steps + 1], self.action_term)
                self.sim.step(self._delay_substeps)
            task.apply(self._queue[:, self._delay_steps], self.action_term)
            self.sim.step(decimation - self._delay_substeps, task.stage)
        else:
            task.apply(task.action, self.action_term)
            self.sim.step(decimation, task.stage)

    def _reset_worlds(self, ids: torch.Tensor) -> None:
        task = self.task
        self.sim.reset(ids)
        for name, values in task.buffers.items():
            if name not in task.lasting:
                values[ids] = 0
        task.reset(ids)
        for i, event in enumerate(self._events):
            if event.when == "reset":
                event.change.operation(task, ids)
            elif event.when == "interval":
                self._timers[ids, i] = self._draw(event, len(ids))
        self.sim.forward(ids)

    def _forget(self, ids: torch.Tensor) -> None:
        """Start the sums over the episode anew in the worlds ``ids`` (n,)."""
        self.rewards.reset(ids)
        for values in (self._metric_steps, *self._metric_sums.values()):
            values[ids] = 0

    def _interval_events(self) -> None:
        for i, event in enumerate(self._events):
            if event.when != "interval":
                continue
            self._timers[:, i] -= self.step_dt
            due = (self._timers[:, i] <= 0).nonzero().squeeze(1)
            if len(due):
                event.change.operation(self.task, due)
                self._timers[due, i] = self._draw(event, len(due))
                self.sim.version += 1

    def _draw(self, event: Event, n: int) -> torch.Tensor:
        return self.task.uniform(*event.interval_s, n)

    def _log(self, ids: torch.Tensor, flags: dict[str, torch.Tensor], truncated: torch.Tensor) -> dict[str, float]:
        """Return means over the episodes that just ended in the worlds ``ids``."""
        # Episodes begun at a later time, to spread out the truncations, have had fewer steps than they are long.
        length, steps = self._episode_length[ids].double(), self._metric_steps[ids]
        log = {"episode/count": float(len(ids)), "episode/length": float(length.mean())}
        log |= self.rewards.episode_means(ids)
        log |= {f"metric/{name}": float((v[ids] / steps).mean()) for name, v in self._metric_sums.items()}
        log |= {f"termination/{name}": float(flag[ids].double().mean()) for name, flag in flags.items()}
        log["termination/time_out"] = float(truncated[ids].double().mean())
        return log


def _merge(mask: torch.Tensor, chosen: Observation, other: Observation) -> Observation:
    """Return the rows of one observation in the worlds marked in ``mask`` (N,), and those of another elsewhere."""
    return {group: torch.where(mask[:, None], values, other[group]) for group, values in chosen.items()}
