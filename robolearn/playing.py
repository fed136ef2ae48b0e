"""Watching a policy: one world under the deterministic policy, without noise and disturbances."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import torch

from robolearn.environments import source_of
from robolearn.exporting import check
from robolearn.loading import load
from robolearn.training import TrainConfig, default_config, make_env
from sim.errors import UserError
from sim.render import Renderer
from tasks.adapters.gymnasium_env import GymnasiumEnv
from tasks.env import Env
from tasks.vector_env import VectorEnv

MAX_FPS = 60
"""Pictures per second of a video; a faster control rate shows every second or third step."""


class Playback:
    """One world, stepped by a policy."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], env: VectorEnv):
        """Begin an episode of an environment of one world.

        Args:
            act: policy observations (1, D) to actions (1, A).
            env: the environment.
        """
        self._act, self.env = act, env
        self.command: np.ndarray | None = None
        """(C,) what is commanded in place of the task's own random commands, or None."""
        self.commands = [
            (name, unit, limits)
            for group in env.interface().commands
            for name, unit, limits in zip(group.components, group.units, group.ranges, strict=True)
        ]
        """Name, unit and range of each of the C components of a command; empty where the task takes none."""
        self.episode_return = 0.0
        """Return of the episode so far."""
        self.finished: list[float] = []
        """Returns of the episodes that ended."""
        self.reset()

    @classmethod
    def of(cls, source: str | Path, seed: int = 0) -> "Playback":
        """Return the playback of a run, a checkpoint or an exported policy.

        Raises:
            UserError: it cannot be loaded.
            ContractError: it is an exported policy that is not the task's.
        """
        policy = load(source)
        trained: TrainConfig = policy.config or default_config(policy.task, sim=policy.sim)
        origin = source_of(trained.sim)
        config = replace(trained, sim=origin.everywhere(), device="cpu")
        if policy.contract is not None:
            check(policy.contract, make_env(config, num_envs=1))
        shown = replace(config, env=origin.play_config(config.task, config.env))
        return cls(policy.act, make_env(shown, num_envs=1, seed=seed, draws=True))

    @property
    def model(self) -> mujoco.MjModel:
        """The scene."""
        return self.worlds.sim.model

    @property
    def worlds(self) -> Env:
        """The environment, if it is a task of ours.

        Raises:
            UserError: it is not, and draws itself.
        """
        if not isinstance(self.env, Env):
            raise UserError(f"the viewers show scenes of our own tasks; {self.env.name} draws itself: --video FILE.mp4")
        return self.env

    def reset(self) -> None:
        """Begin a new episode."""
        self._obs, _ = self.env.reset()
        self.episode_return = 0.0

    def step(self) -> None:
        """Take one control step; a new episode begins when one ends."""
        obs = self._obs["policy"]
        if self.command is not None:
            obs = self._commanded(obs, torch.as_tensor(self.command, dtype=torch.float64))
        self._obs, reward, terminated, truncated, _ = self.env.step(self._act(obs))
        self.episode_return += float(reward)
        if bool(terminated | truncated):
            self.finished.append(self.episode_return)
            self.episode_return = 0.0

    def write_state(self, data: mujoco.MjData) -> None:
        """Put the world's state into ``data`` and compute where everything is."""
        sim = self.worlds.sim
        data.qpos[:], data.qvel[:], data.ctrl[:] = sim.qpos[0], sim.qvel[0], sim.ctrl[0]
        data.time = float(sim.time[0])
        mujoco.mj_forward(self.model, data)

    @property
    def qpos(self) -> np.ndarray:
        """(nq,) generalised position; quaternions in it are (w, x, y, z)."""
        return self.worlds.sim.qpos[0].numpy().copy()

    def _commanded(self, obs: torch.Tensor, command: torch.Tensor) -> torch.Tensor:
        """Return the observation (1, D) under another command, and tell the task."""
        self.worlds.task.buffers["command"][0] = command
        start = 0
        for name, size in self.env.observation_terms["policy"].items():
            if name == "command":
                obs = obs.clone()
                obs[0, start : start + size] = command.to(obs.dtype)
            start += size
        return obs


def fix_command(playback: Playback, command: Sequence[float] | None) -> None:
    """Command this instead of random commands; None changes nothing.

    Raises:
        UserError: the task takes no command, or one of another number of components.
    """
    if command is None:
        return
    names = ", ".join(f"{name} {unit}".strip() for name, unit, _ in playback.commands)
    if not names:
        raise UserError("this task takes no command")
    if len(command) != len(playback.commands):
        raise UserError(f"a command of this task has {len(playback.commands)} numbers ({names}), not {len(command)}")
    playback.command = np.array(command, dtype=np.float64)


def record(playback: Playback, path: Path, seconds: float, size: tuple[int, int] | None = None) -> int:
    """Write a video at the speed of real time and return its number of pictures.

    Args:
        playback: what to show, from where it stands.
        path: an ``.mp4`` file, written whole or not at all.
        seconds: length of the video.
        size: width and height of the pictures, pixels; 640 x 480, or that of an environment that draws itself.

    Raises:
        UserError: the machine cannot render, or the file cannot be written.
    """
    import cv2

    if path.suffix.lower() != ".mp4":
        raise UserError(f"a video is an .mp4 file, not {path.name}")
    dt = playback.env.step_dt
    stride = max(1, math.ceil(1 / (MAX_FPS * dt) - 1e-9))
    partial = path.with_name(f".{path.stem}.partial.mp4")
    frames = max(1, round(seconds / (stride * dt)))
    with _pictures(playback, size) as draw:
        picture = draw()
        height, width = picture.shape[:2]
        writer = cv2.VideoWriter(str(partial), cv2.VideoWriter.fourcc(*"mp4v"), 1 / (stride * dt), (width, height))
        try:
            if not writer.isOpened():
                raise UserError(f"cannot write a video into {path.parent}")
            for frame in range(frames):
                if frame:
                    picture = draw()
                writer.write(picture[..., ::-1].copy())  # OpenCV's order is blue, green, red
                for _ in range(stride):
                    playback.step()
            writer.release()
            partial.replace(path)
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror}") from None
        finally:
            writer.release()
            partial.unlink(missing_ok=True)
    return frames


@contextmanager
def _pictures(playback: Playback, size: tuple[int, int] | None) -> Iterator[Callable[[], np.ndarray]]:
    """Give what draws the present state, (H, W, 3) uint8."""
    if isinstance(playback.env, GymnasiumEnv):
        import cv2

        render = playback.env.render
        yield render if size is None else lambda: cv2.resize(render(), size, interpolation=cv2.INTER_AREA)
        return
    model = playback.model
    cameras = [model.camera(i).name for i in range(model.ncam)]
    with Renderer(model, *size or (640, 480)) as renderer:
        yield lambda: renderer.render(playback.qpos, "track" if "track" in cameras else None)
