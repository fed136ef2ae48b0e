"""A trained policy, ready to act, from a run directory, a checkpoint file or an exported ONNX file."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from deploy.contract import Contract
from deploy.runtime import Policy
from robolearn import run as runs
from robolearn.algorithms.registry import policy_of
from robolearn.environments import GYMNASIUM, source_of
from robolearn.training import TrainConfig, load_config, make_env
from sim.errors import UserError
from tasks.vector_env import VectorEnv

ArrayT = TypeVar("ArrayT", np.ndarray, torch.Tensor)


class LoadedPolicy(ABC):
    """A policy that gives its deterministic action, and where it comes from."""

    source: Literal["run", "onnx"]
    task: str
    """The task it was trained on, by name."""
    sim: str
    """What its environment comes from: a physics backend by name, or gymnasium."""
    path: Path
    """The checkpoint or ONNX file."""
    config: TrainConfig | None
    """What it was trained with; None for an ONNX file."""
    contract: Contract | None
    """The contract in an ONNX file; None for a run."""
    terms: dict[str, int]
    """The size of each observation term, in order."""

    def act(self, observation: ArrayT) -> ArrayT:
        """Return actions (N, A) float32, not yet clipped, for raw policy observations (N, D), of the same kind.

        A tensor comes back on its device.

        Raises:
            UserError: observations of another shape.
        """
        size = sum(self.terms.values())
        if observation.ndim != 2 or observation.shape[1] != size:
            stated = ", ".join(f"{name} {n}" for name, n in self.terms.items())
            shape = tuple(observation.shape)
            raise UserError(f"the observation has shape {shape}; this policy takes (N, {size}): {stated}")
        if isinstance(observation, torch.Tensor):
            return self._act(observation.detach().float()).to(observation.device)
        return self._act(torch.from_numpy(np.ascontiguousarray(observation, np.float32))).cpu().numpy()

    @abstractmethod
    def _act(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the actions (N, A) of observations (N, D) float32."""


class RunPolicy(LoadedPolicy):
    """The policy of a checkpoint, in torch."""

    source = "run"
    contract = None

    def __init__(self, trained: "Trained", device: str):
        self.task, self.path, self.config = trained.config.task, trained.checkpoint, trained.config
        self.sim = trained.config.sim
        self.terms = dict(trained.env.observation_terms["policy"])
        self.module = trained.policy.to(device).eval()
        self._device = device

    @torch.no_grad()
    def _act(self, observation: torch.Tensor) -> torch.Tensor:
        return self.module(observation.to(self._device))


class OnnxPolicy(LoadedPolicy):
    """An exported policy, on one CPU thread."""

    source = "onnx"
    config = None

    def __init__(self, path: Path):
        self._policy = Policy(path)
        self.contract = self._policy.contract
        provenance = self.contract.provenance
        self.task, self.path = provenance.task, path
        self.sim = GYMNASIUM if provenance.environments == GYMNASIUM else "mujoco"
        self.terms = {term.name: term.dim * term.history for term in self.contract.observation.terms}

    def _act(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._policy.act(observation.cpu().numpy())[0])


@dataclass(frozen=True)
class Trained:
    """A checkpoint brought back to life on the CPU."""

    run: runs.Run
    checkpoint: Path
    config: TrainConfig
    iteration: int
    policy: Any
    """The policy module; called with raw observations (N, D) it returns its mean actions (N, A)."""
    env: VectorEnv
    """One world of the task, as far in its curriculum as the training was."""


def load(path: str | Path, device: str = "cpu") -> LoadedPolicy:
    """Return the policy of a run directory, a checkpoint file or an ``.onnx`` file.

    Args:
        path: of a run, its newest checkpoint that loads is taken.
        device: where a run's policy computes; an ONNX file's computes on the CPU.

    Raises:
        UserError: there is no such run or checkpoint, or it does not load or fit its config.
        ContractError: the ONNX file is not one that robolearn exported.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        return OnnxPolicy(path)
    return RunPolicy(restore(path), device)


def restore(path: str | Path) -> Trained:
    """Return what a run directory or a checkpoint file holds.

    Raises:
        UserError: there is no such run or checkpoint, or it does not load or fit its config.
    """
    run = runs.open(path)
    config = load_config(run.config)
    checkpoint, payload = run.load()
    if payload["config"]["task"] != config.task:
        raise UserError(f"{checkpoint} was trained on {payload['config']['task']!r}, and its run is of {config.task!r}")
    # The networks' sizes are all that the worlds are needed for: one will do, on whatever this machine has.
    env = make_env(replace(config, sim=source_of(config.sim).everywhere(), device="cpu"), num_envs=1)
    # Building an algorithm seeds torch, which must not change the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        try:
            policy = policy_of(config.algo, env, config.algorithm, payload["algorithm"])
        except (RuntimeError, KeyError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise UserError(f"{checkpoint} does not fit the networks of its run's config: {reason}") from None
    env.load_progress(payload["env"])
    return Trained(run, checkpoint, config, payload["iteration"], policy, env)
