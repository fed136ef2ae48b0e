"""Running an exported policy: numpy and onnxruntime, nothing else."""

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime

from deploy.contract import Contract, from_json
from deploy.errors import ContractError
from deploy.onnx_file import CONTRACT_KEY, CONTRACT_SHA256_KEY, OnnxContent, read_content

_FATAL_ONLY = 4


def read_contract(path: str | Path) -> Contract:
    """Return the contract of a policy file, after checking that the file is whole and belongs to it.

    Raises:
        ContractError: a file that is missing, truncated, altered or not exported by robolearn.
    """
    return _read(Path(path))[1]


class Policy:
    """An exported policy on one CPU thread.

    Args:
        path: the ONNX file that `deploy.exporter.export` wrote.

    Raises:
        ContractError: a file that `read_contract` refuses, or a kind of graph that needs another runtime.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        data, self.contract = _read(path)
        options = onnxruntime.SessionOptions()
        # A pool of threads costs more than it saves on a network of this size, and its tail is milliseconds.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = _FATAL_ONLY
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors have no common base class
            reason = " ".join(str(error).split())
            raise ContractError(f"{path}: onnxruntime {onnxruntime.__version__} cannot load it: {reason}") from None
        self._observation = np.zeros((1, self.contract.observation.dim), np.float32)
        self._action = np.zeros((1, len(self.contract.action.joints)), np.float32)
        self._target = np.zeros_like(self._action)
        self._check_graph(path)
        self._binding = self._session.io_binding()
        for bind, name, array in (
            (self._binding.bind_input, "observation", self._observation),
            (self._binding.bind_output, "action", self._action),
            (self._binding.bind_output, "target", self._target),
        ):
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the raw action and the target, each float32 `(N, A)`, for raw observations `(N, D)` in SI units.

        The target is in the unit of the action's joints (rad for a revolute joint), in the contract's order.

        Raises:
            ContractError: an observation of another shape.
        """
        observation = np.asarray(observation)
        dim = self._observation.shape[1]
        if observation.ndim != 2 or observation.shape[1] != dim:
            terms = ", ".join(f"{term.name} {term.dim * term.history}" for term in self.contract.observation.terms)
            raise ContractError(f"the observation has shape {observation.shape}; this policy takes (N, {dim}): {terms}")
        if len(observation) == 1:
            self._observation[:] = observation
            self._session.run_with_iobinding(self._binding)
            return self._action.copy(), self._target.copy()
        action, target = self._session.run(["action", "target"], {"observation": observation.astype(np.float32)})
        return np.asarray(action), np.asarray(target)

    def _check_graph(self, path: Path) -> None:
        dims = {"observation": self._observation.shape[1], "action": self._action.shape[1]}
        dims["target"] = dims["action"]
        found = {node.name: node.shape for node in (*self._session.get_inputs(), *self._session.get_outputs())}
        if set(found) != set(dims) or any(found[name][1:] != [dims[name]] for name in dims):
            raise ContractError(f"{path}: the graph has {found}, and its contract says {dims}; export it again")


def _read(path: Path) -> tuple[bytes, Contract]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ContractError(f"{path}: cannot read the policy file: {error.strerror}") from None
    try:
        content = read_content(data)
        return data, _paired_contract(content)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from None


def _paired_contract(content: OnnxContent) -> Contract:
    text = content.metadata.get(CONTRACT_KEY)
    if text is None:
        raise ContractError("an ONNX file without a policy contract; use one that `robolearn export` wrote")
    if hashlib.sha256(text.encode()).hexdigest() != content.metadata.get(CONTRACT_SHA256_KEY):
        raise ContractError("the policy contract was altered after the export; export it again")
    contract = from_json(text)
    if contract.graph is None or contract.graph.model_sha256 != content.graph_sha256:
        raise ContractError("the graph is not the one this policy contract was written for; export it again")
    return contract
