"""The whole way once: train a quadruped to walk, export it, judge the exported file, and show it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch

from robolearn import run as runs
from robolearn.evaluation import evaluate, make_evaluation_env, save
from robolearn.exporting import check, export
from robolearn.loading import load
from robolearn.log import read_metrics
from robolearn.playing import Playback, record
from robolearn.run import Run
from robolearn.training import Outcome, TrainConfig, default_config
from sim.errors import UserError
from tasks.vector_env import VectorEnv

TASK = "Go2-Velocity-Flat"
EPISODES = 256
SEED = 1000
"""Decides the worlds of the evaluation, which are not those of the training."""
VIDEO_S = 10.0
VIDEO_COMMAND = (0.8, 0.0, 0.3)
"""m/s forward, m/s left, rad/s left."""

Judge = Callable[[Callable[[torch.Tensor], torch.Tensor], VectorEnv, int], dict[str, Any]]
"""What `robolearn.evaluation.evaluate` is: the policy, where, how many episodes, to the result."""


@dataclass(frozen=True)
class Demo:
    """What came of it."""

    run: Run
    outcome: Outcome
    result: dict[str, Any]
    """Of the evaluation of the exported file."""
    files: list[Path]
    """What was made."""
    no_video: str | None
    """Why there is no video, or None if there is one."""


def begin(folder: Path, **changes: Any) -> tuple[TrainConfig, Run]:
    """Return the config of the demonstration, with some fields changed, and the run made for it."""
    config = default_config(TASK, "ppo", **changes)
    return config, runs.create(folder, TASK, "ppo", config, config.seed, config.device)


def finish(folder: Path, run: Run, outcome: Outcome, episodes: int = EPISODES, judge: Judge = evaluate) -> Demo:
    """Export, judge and show what a finished training learned.

    The exported file is judged over whole episodes of 20 s under random commands from their whole range, with noise,
    pushes and varied worlds.

    Args:
        folder: where the files go.
        run: of the training.
        outcome: of the training.
        episodes: how many.
        judge: `evaluate`, or one that shows its progress.

    Raises:
        UserError: a file cannot be written.
        ContractError: the exported file does not do what torch does.
    """
    policy_file, eval_file = export(run.path, folder / "policy.onnx"), folder / "eval.json"
    result = judge_file(policy_file, episodes, judge)
    save(eval_file, result)
    files = [policy_file, eval_file, draw_learning_curve(run, folder / "learning_curve.png")]
    no_video = None
    try:
        playback = Playback.of(policy_file)
        playback.command = torch.tensor(VIDEO_COMMAND).numpy()
        video = folder / "walk.mp4"
        record(playback, video, VIDEO_S)
        files.append(video)
    except UserError as error:
        no_video = str(error)
    return Demo(run, outcome, result, files, no_video)


def judge_file(policy_file: Path, episodes: int, judge: Judge) -> dict[str, Any]:
    """Return the statistics of an exported policy over whole episodes."""
    policy = load(policy_file)
    config = default_config(TASK, "ppo", env={"command": {"standing": 0.0}})
    env = make_evaluation_env(config, min(episodes, EPISODES), SEED)
    assert policy.contract is not None
    check(policy.contract, env)
    about = {"policy": str(policy_file), "task": TASK, "seed": SEED, "num_envs": env.num_envs}
    return about | judge(policy.act, env, episodes)


def draw_learning_curve(run: Run, path: Path) -> Path:
    """Draw the return and the task's errors over the steps of a training, as a PNG file, and return its path.

    Raises:
        UserError: the file cannot be written.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in read_metrics(run.metrics) if row.get("episode/return") is not None]
    steps = [row["steps"] for row in rows]
    measures = ("episode/return", "metric/velocity_error", "metric/yaw_rate_error")
    labels = ("return", "velocity error, m/s", "yaw rate error, rad/s")
    figure, axes = pyplot.subplots(len(measures), 1, sharex=True, figsize=(7, 7), layout="constrained")
    for axis, measure, label in zip(axes, measures, labels, strict=True):
        axis.plot(steps, [row[measure] for row in rows])
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("environment steps")
    axes[0].set_title(f"{TASK}, mean over the episodes that ended in each iteration")
    try:
        figure.savefig(path, dpi=120)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from None
    finally:
        pyplot.close(figure)
    return path
