"""The export: one ONNX file with its contract inside and its golden replay beside it, verified or not written."""

import contextlib
import copy
import dataclasses
import datetime
import hashlib
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import torch

from deploy.contract import Action, Contract, Golden, Graph, GraphTensor, Range
from deploy.errors import ContractError
from deploy.golden import ACTION_TOLERANCE, MINIMUM_STEPS, TARGET_TOLERANCE, encode, largest_error, replay
from deploy.onnx_file import CONTRACT_KEY, CONTRACT_SHA256_KEY, read_content
from deploy.runtime import Policy

OPSET = 17


def export(
    module: torch.nn.Module,
    contract: Contract,
    observations: np.ndarray,
    path: str | Path,
    *,
    tolerance: float = ACTION_TOLERANCE,
) -> Contract:
    """Write a policy as ONNX, after running the file over `observations` and finding it equal to torch.

    The graph takes `observation` `(N, D)` and gives `action` `(N, A)`, what `module` returns, and `target` `(N, A)`,
    what the contract's action section makes of it. The golden replay is written beside it as `<stem>.golden.npz`.

    Args:
        module: maps raw observations `(N, D)` in SI units to raw actions `(N, A)`, its normaliser inside; unchanged.
        contract: what the task and the training say; its `graph`, `golden`, identity and versions are filled in here.
        observations: `(T, D)` float32, T >= 200 consecutive steps of simulation.
        path: where the file goes, `<stem>.onnx`; an existing one is replaced.
        tolerance: the largest allowed absolute difference of any output from torch's.

    Returns:
        The contract as it stands in the file.

    Raises:
        ContractError: the module cannot be exported, or its file does not do what torch does; nothing is written.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ContractError(f"{path}: the policy file must be named something.onnx")
    _check_observations(observations, contract)
    observations = np.ascontiguousarray(observations, np.float32)
    policy = _WithTarget(copy.deepcopy(module), contract.action).cpu().float().eval()
    action, target = _run_torch(policy, observations)
    model = _to_onnx(policy, observations.shape[1])

    golden = encode(observations, action, target)
    contract = dataclasses.replace(
        contract,
        bundle_id=str(uuid.uuid4()),
        created_utc=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        policy=dataclasses.replace(
            contract.policy,
            opset=OPSET,
            ir_version=model.ir_version,
            producer=f"{model.producer_name} {model.producer_version}",
        ),
        graph=_graph(model, observations.shape[1], action.shape[1]),
        golden=Golden(
            file=f"{path.stem}.golden.npz",
            sha256=hashlib.sha256(golden).hexdigest(),
            steps=len(observations),
            action_tolerance=ACTION_TOLERANCE,
            target_tolerance=TARGET_TOLERANCE,
        ),
    )
    onnx.helper.set_model_props(model, {CONTRACT_KEY: contract.to_json(), CONTRACT_SHA256_KEY: contract.sha256})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _written_aside(path, model.SerializeToString()) as policy_file,
            _written_aside(path.with_name(f"{path.stem}.golden.npz"), golden) as golden_file,
        ):
            _check_parity(Policy(policy_file), observations, (action, target), tolerance)
            # The replay first: between the two, the old policy refuses a replay that is not its own.
            os.replace(golden_file, path.with_name(f"{path.stem}.golden.npz"))
            os.replace(policy_file, path)
    except OSError as error:
        raise ContractError(f"{path}: cannot write the policy: {error.strerror}") from None
    return contract


class _WithTarget(torch.nn.Module):
    """Adds the joint targets of the contract's action section to a policy."""

    def __init__(self, policy: torch.nn.Module, action: Action) -> None:
        super().__init__()
        self.policy = policy
        self.scale = torch.nn.Buffer(torch.tensor(action.scale, dtype=torch.float32))
        self.offset = torch.nn.Buffer(torch.tensor(action.offset, dtype=torch.float32))
        self.clip_raw = _limits(action.clip_raw)
        self.clip_target = _limits(action.clip_target)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        action = self.policy(observation)
        target = self.offset + self.scale * _clip(action, self.clip_raw)
        return action, _clip(target, self.clip_target)


def _limits(ranges: tuple[Range, ...] | None) -> torch.Tensor | None:
    return None if ranges is None else torch.nn.Buffer(torch.tensor(ranges, dtype=torch.float32))


def _clip(value: torch.Tensor, limits: torch.Tensor | None) -> torch.Tensor:
    return value if limits is None else torch.minimum(torch.maximum(value, limits[:, 0]), limits[:, 1])


def _check_observations(observations: np.ndarray, contract: Contract) -> None:
    dim = contract.observation.dim
    if observations.ndim != 2 or observations.shape[1] != dim:
        raise ContractError(f"export: observations have shape {observations.shape}, and the contract says (T, {dim})")
    if len(observations) < MINIMUM_STEPS:
        raise ContractError(f"export: {len(observations)} steps of observations; {MINIMUM_STEPS} are needed")
    if not np.isfinite(observations).all():
        step = int(np.flatnonzero(~np.isfinite(observations).all(axis=1))[0])
        raise ContractError(f"export: the observation of step {step} is not finite")


def _run_torch(policy: _WithTarget, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    expected = (len(observations), len(policy.scale))
    batch = torch.from_numpy(observations)
    with torch.no_grad():
        first = policy.policy(batch)
        if tuple(first.shape) != expected:
            raise ContractError(f"export: the action has shape {tuple(first.shape)}, and the contract says {expected}")
        action, target = policy(batch)
    if not bool(torch.isfinite(action).all() and torch.isfinite(target).all()):
        raise ContractError("export: the policy's action is not finite; nothing was written")
    if not torch.equal(action, first):
        raise ContractError("export: the policy gives another action for the same observation; export its mean action")
    return action.numpy(), target.numpy()


def _to_onnx(policy: _WithTarget, dim: int) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _quiet("torch.onnx"):
        file = Path(folder) / "policy.onnx"
        warnings.simplefilter("ignore")
        try:
            # The newer exporter writes another opset than it is asked for, and the weights into a second file.
            torch.onnx.export(
                policy,
                (torch.zeros(1, dim),),
                file,
                dynamo=False,
                opset_version=OPSET,
                input_names=["observation"],
                output_names=["action", "target"],
                dynamic_axes={name: {0: "batch"} for name in ("observation", "action", "target")},
            )
        except Exception as error:  # whatever torch raises, the user's module has no ONNX form
            reason = " ".join(str(error).split())[:200]
            raise ContractError(f"export: torch cannot write this policy as ONNX: {reason}") from error
        return onnx.load(file)


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    before = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(before)


def _graph(model: onnx.ModelProto, observation_dim: int, action_dim: int) -> Graph:
    def tensor(name: Literal["observation", "action", "target"], dim: int) -> GraphTensor:
        return GraphTensor(name=name, shape=(None, dim), dtype="float32", role=name)

    return Graph(
        mode="network",
        external_data=False,
        model_sha256=read_content(model.SerializeToString()).graph_sha256,
        inputs=(tensor("observation", observation_dim),),
        outputs=(tensor("action", action_dim), tensor("target", action_dim)),
    )


def _check_parity(
    policy: Policy, observations: np.ndarray, expected: tuple[np.ndarray, np.ndarray], tolerance: float
) -> None:
    stepwise, batched = replay(policy, observations), policy.act(observations)
    for how, outputs in (("one step at a time", stepwise), ("as a batch", batched)):
        for name, ours, theirs in zip(("action", "target"), outputs, expected, strict=True):
            error = largest_error(ours, theirs)
            if not error <= tolerance:
                raise ContractError(
                    f"export: run {how}, the {name} of the file differs from torch's by {error:.3g}, "
                    f"more than {tolerance:g}; nothing was written"
                )


@contextlib.contextmanager
def _written_aside(path: Path, data: bytes) -> Iterator[Path]:
    """Write the bytes to a temporary name in the folder of `path`, and remove it at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
