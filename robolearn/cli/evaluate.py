"""``robolearn eval``."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from robolearn.cli import flags
from robolearn.cli.parser import Parser, at_least, failures
from robolearn.config import updated
from robolearn.evaluation import evaluate, make_evaluation_env, save
from robolearn.exporting import check
from robolearn.loading import load
from robolearn.log import ProgressDisplay, print_table
from robolearn.training import TrainConfig, default_config
from sim.errors import UserError
from tasks.vector_env import VectorEnv

FIXED = ("task", "algo", "algorithm", "num_envs", "steps", "seed", "checkpoint_every", "torch_threads")
"""Fields of the training's config that an evaluation does not have, or has options of its own for."""
SEED = 1000
"""Decides the worlds of an evaluation, which are not those of the training."""


def run(arguments: Sequence[str]) -> int:
    """Evaluate."""
    parser = Parser(
        "eval", "Judge a run or an exported policy over whole episodes, its task's noise and disturbances on."
    )
    parser.usage = (
        "robolearn eval RUN|FILE.onnx [--episodes N] [--num-envs N] [--seed S] [--sim NAME] [--env.FIELD VALUE ...]"
    )
    parser.add_argument("--episodes", metavar="N", type=at_least(1), default=64, help="whole episodes")
    parser.add_argument("--num-envs", metavar="N", type=at_least(1), help="worlds; as many as episodes, up to 256")
    parser.add_argument("--seed", metavar="S", type=at_least(0), default=SEED, help="decides the worlds")
    arguments = list(arguments)
    source = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    options, words = parser.parse_some(arguments)
    if source is None:
        raise UserError(f"a run or a policy comes first: {parser.usage}")
    result, path = judge(Path(source), options.episodes, options.num_envs, options.seed, words, parser)
    print_result(result)
    with failures():
        save(path, result)
    print(path)
    return 0


def judge(
    source: Path, episodes: int, num_envs: int | None, seed: int, words: Sequence[str], parser: Parser
) -> tuple[dict[str, Any], Path]:
    """Return the result of an evaluation, and the file it belongs into, beside what was judged.

    Args:
        source: a run directory, a checkpoint in one, or an exported policy.
        episodes: how many; rounded up to a multiple of the number of worlds.
        num_envs: how many worlds; None for one each episode, up to 256.
        seed: decides the worlds.
        words: flags that change the task's config.
        parser: of the command the words were given to.

    Raises:
        UserError: the source cannot be loaded, or a flag is wrong.
        ContractError: an exported policy is not the task's as configured; names the differences.
    """
    policy = load(source)
    config: TrainConfig = policy.config or default_config(policy.task, sim=policy.sim)
    changes = flags.read(config, words, parser, FIXED)
    config = updated(config, changes)
    torch.set_num_threads(1)
    env = make_evaluation_env(config, num_envs or min(episodes, 256), seed)
    if policy.contract is not None:
        check(policy.contract, env)
    about = {"policy": str(policy.path), "task": config.task, "seed": seed, "num_envs": env.num_envs}
    about |= {"changes": changes, "robolearn": version("robolearn"), "mujoco": version("mujoco")}
    try:
        with failures():
            result = run_episodes(policy.act, env, episodes)
    finally:
        env.close()
    if policy.source == "run":
        return about | result, policy.path.parent.parent / "eval.json"  # of the checkpoints' run
    return about | result, policy.path.with_suffix(".eval.json")  # a folder may hold several policies


def run_episodes(act: Any, env: VectorEnv, episodes: int) -> dict[str, Any]:
    """Return the statistics of whole episodes, with progress on the terminal."""
    steps = -(-episodes // env.num_envs) * env.max_episode_length
    progress = ProgressDisplay(0, steps, env.num_envs, Console(stderr=True), name="step")
    done = 0

    def counted(observation: torch.Tensor) -> torch.Tensor:
        nonlocal done
        done += 1
        progress.update(done, {})
        return act(observation)

    try:
        return evaluate(counted, env, episodes)
    finally:
        progress.close()


def print_result(result: dict[str, Any]) -> None:
    """Print the numbers of an evaluation as a table."""
    hidden = ("seed", "num_envs")
    rows = [(n, v) for n, v in result.items() if isinstance(v, int | float) and n not in hidden]
    print_table(f"{result['task']}: {result['episodes']} episodes", ("measure", "value"), rows)
