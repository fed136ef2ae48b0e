"""The golden replay: consecutive steps of simulation that every runtime must reproduce before motors are enabled."""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.contract import Golden
from deploy.errors import ContractError
from deploy.runtime import Policy

ACTION_TOLERANCE = 1e-5
TARGET_TOLERANCE = 1e-4
MINIMUM_STEPS = 200


@dataclass(frozen=True)
class GoldenReport:
    """A replay that passed: its length and the largest absolute errors of the two outputs."""

    steps: int
    action_error: float
    target_error: float


def verify(path: str | Path) -> GoldenReport:
    """Replay the golden steps that lie beside a policy file, one at a time as on the robot, and compare the outputs.

    Raises:
        ContractError: the file or its replay is missing or altered, or an output differs by more than the tolerance.
    """
    path = Path(path)
    policy = Policy(path)
    golden = policy.contract.golden
    if golden is None:
        raise ContractError(f"{path}: it names no golden replay; export it again")
    observation, action, target = _read(path.with_name(golden.file), golden)
    replayed = replay(policy, observation)
    action_error, target_error = largest_error(replayed[0], action), largest_error(replayed[1], target)
    for name, error, tolerance in (
        ("action", action_error, golden.action_tolerance),
        ("target", target_error, golden.target_tolerance),
    ):
        if not error <= tolerance:
            raise ContractError(
                f"{path}: the {name} differs from the golden replay by {error:.3g}, more than {tolerance:g}; "
                "do not run it on a robot, export it again"
            )
    return GoldenReport(golden.steps, action_error, target_error)


def replay(policy: Policy, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the actions and targets `(T, A)` of observations `(T, D)` given one at a time."""
    steps = [policy.act(row[None]) for row in observation]
    return np.concatenate([action for action, _ in steps]), np.concatenate([target for _, target in steps])


def largest_error(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest absolute difference, NaN when any value is not finite, infinity for unequal shapes."""
    if a.shape != b.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(np.float64(a) - np.float64(b)), initial=0.0))


def encode(observation: np.ndarray, action: np.ndarray, target: np.ndarray) -> bytes:
    """Return the bytes of a golden replay file, the same for the same arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, observation=observation, action=action, target=target)
    return buffer.getvalue()


def _read(path: Path, golden: Golden) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ContractError(f"{path}: cannot read the policy's golden replay: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != golden.sha256:
        raise ContractError(f"{path}: not the golden replay this policy was exported with; copy both files again")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return arrays["observation"], arrays["action"], arrays["target"]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile):
        raise ContractError(f"{path}: not a golden replay file; export the policy again") from None
