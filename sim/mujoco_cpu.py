"""MuJoCo on CPU threads, through MuJoCo's own batched stepping."""

import ctypes
import os
import warnings
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import batch as mujoco_batch

from sim.errors import UserError, unknown
from sim.memory import check_fits
from sim.simulation import Simulation

_DIVERGENCE = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                                mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_WARNING_NAMES = [name.removeprefix("mjWARN_").lower() for name in mujoco.mjtWarning.__members__][:-1]


class MujocoSimulation(Simulation):
    """N worlds on CPU threads; every tensor is a zero-copy view of ``mujoco.batch``, so state is float64.

    Results do not depend on the number of threads.
    """

    def __init__(
        self, model: mujoco.MjModel, num_worlds: int, threads: int | None = None, external_forces: bool = False
    ):
        """Make N worlds in the model's default state.

        Args:
            model: the compiled model; copied.
            num_worlds: N.
            threads: CPU threads, or None for one for each core this process may use.
            external_forces: whether `external_forces` will be asked for; each world then keeps its ``mjData``, 0.2 MB.

        Raises:
            UserError: N is not positive or more than fits into memory, or the model resets diverged worlds behind
                the caller's back.
        """
        if num_worlds < 1:
            raise UserError(f"num_envs must be at least 1, not {num_worlds}")
        if not model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_AUTORESET):
            raise UserError('the model needs <option><flag autoreset="disable"/></option>: '
                            "otherwise a diverged world is reset unseen")  # fmt: skip
        world = 8 * mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        if external_forces:
            world += int(mujoco.MjData(model).nbuffer)
        check_fits(f"the state of {num_worlds:,} worlds", num_worlds * world, torch.device("cpu"), "lower --num-envs")
        _silence_mujoco_warnings()
        self.threads = min(threads or len(os.sched_getaffinity(0)), num_worlds)
        self._batch = mujoco_batch.Batch(model, nsim=num_worlds, nthread=self.threads, persistent=external_forces)
        self.model = self._batch.model
        self.num_worlds = num_worlds
        self.device = torch.device("cpu")
        self.version = 0
        self._derived: dict[str, torch.Tensor] = {}
        self._expanded: dict[str, torch.Tensor] = {}
        self._scratch = mujoco.MjData(self.model) if external_forces else None
        self._external_forces = np.zeros((num_worlds, self.model.nbody, 6))
        self._drained = np.zeros((num_worlds, len(_WARNING_NAMES)), np.int64)
        self._lost = np.zeros(len(_WARNING_NAMES), np.int64)
        self.qpos, self.qvel, self.ctrl, self.time = (
            _tensor(self._batch.bind(field)) for field in ("qpos", "qvel", "ctrl", "time")
        )

    def bind(self, field: str) -> torch.Tensor:
        if field not in mujoco_batch.DATA_FIELDS:
            raise unknown("MjData field", field, mujoco_batch.DATA_FIELDS)
        if field not in self._derived:
            # Reading a field must not change the run, but the forward that fills it moves the solver's warm start, and
            # the fields already bound on by a substep.
            rows, others = self._batch.state.copy(), {name: values.clone() for name, values in self._derived.items()}
            self._derived[field] = _tensor(self._batch.bind(field))
            self._batch.forward()
            self._batch.state[:] = rows
            for name, values in others.items():
                self._derived[name].copy_(values)
        return self._derived[field]

    def sensor(self, name: str) -> torch.Tensor:
        names = [self.model.sensor(i).name for i in range(self.model.nsensor)]
        if name not in names:
            raise unknown("sensor", name, names)
        view = self.model.sensor(name)
        start = int(view.adr[0])
        return self.bind("sensordata")[:, start : start + int(view.dim[0])]

    def external_forces(self) -> torch.Tensor:
        if self._scratch is None:
            raise UserError("this simulation was made without external_forces=True, so contact forces are not kept")
        data, forces = self._scratch, self._scratch.cfrc_ext
        # The batch has no call for this, and a force sensor would make mj_step compute RK4's first stage, not its last.
        # Contact forces and frames are in the data already, so the model that all worlds share will do.
        for world in range(self.num_worlds):
            self._batch.get_data(world, data)
            mujoco.mj_rnePostConstraint(self.model, data)
            self._external_forces[world] = forces
        return torch.from_numpy(self._external_forces)

    def expand(self, field: str) -> torch.Tensor:
        if field not in mujoco_batch.MODEL_FIELDS:
            raise unknown("MjModel field", field, mujoco_batch.MODEL_FIELDS)
        if field not in self._expanded:
            self._expanded[field] = _tensor(self._batch.expand(field))
        return self._expanded[field]

    def set_const(self, ids: torch.Tensor | None = None) -> None:
        self._batch.set_const(_ids(ids))

    def step(self, substeps: int = 1, stage: mujoco.mjtStage = mujoco.mjtStage.mjSTAGE_NONE) -> None:
        self._batch.step(nstep=substeps, stage=int(stage))
        self.version += 1

    def forward(self, ids: torch.Tensor | None = None) -> None:
        if self._derived:
            self._batch.forward(_ids(ids))
        self.version += 1

    def reset(self, ids: torch.Tensor | None = None) -> None:
        rows = slice(None) if ids is None else _ids(ids)
        # MuJoCo clears a world's counters when it resets it: keep what they held.
        self._lost += (self._batch.warning[rows, :, 1] - self._drained[rows]).sum(0)
        self._drained[rows] = 0
        self._batch.reset(_ids(ids), stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self.version += 1

    def diverged(self) -> torch.Tensor:
        bad = (self._batch.warning[:, _DIVERGENCE, 1] > 0).any(1)
        return torch.from_numpy(bad) | ~torch.isfinite(self.qpos.sum(1) + self.qvel.sum(1))

    def drain_warnings(self) -> dict[str, int]:
        counts = self._batch.warning[:, :, 1].astype(np.int64)
        new = (counts - self._drained).sum(0) + self._lost
        self._drained[:] = counts
        self._lost[:] = 0
        return {name: int(n) for name, n in zip(_WARNING_NAMES, new, strict=True) if n}

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": torch.from_numpy(self._batch.state.copy()),
            "warning": torch.from_numpy(self._batch.warning.copy()),
            "drained": torch.from_numpy(self._drained.copy()),
            "lost": torch.from_numpy(self._lost.copy()),
            "fields": {name: values.clone() for name, values in self._expanded.items()},
            "derived": {name: values.clone() for name, values in self._derived.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state["fields"].items():
            self.expand(name).copy_(values)
        if state["fields"]:
            self.set_const()
        self._batch.state[:] = state["state"].numpy()
        self.forward()
        # After a step, derived fields are a substep behind the state, so the saved ones stand; and so do the rows,
        # where forward has moved the solver's warm start.
        for name, values in state["derived"].items():
            self.bind(name).copy_(values)
        self._batch.state[:] = state["state"].numpy()
        self._batch.warning[:] = state["warning"].numpy()
        self._drained[:] = state["drained"].numpy()
        self._lost[:] = state["lost"].numpy()
        self.version += 1


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # Derived fields are read-only arrays on purpose; torch has no read-only tensors and says so once for each.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _ids(ids: torch.Tensor | None) -> np.ndarray | None:
    return None if ids is None else ids.numpy().astype(np.int32)


def _silence_mujoco_warnings() -> None:
    """Keep MuJoCo from printing, and from writing MUJOCO_LOG.TXT, at each unstable step: the batch counts them.

    The handler has to be a C function, since the batch calls it from threads that hold no interpreter lock; strlen
    takes a string and changes nothing.
    """
    handler = ctypes.CDLL(None).strlen
    handler.argtypes, handler.restype = [ctypes.c_char_p], None
    mujoco.set_mju_user_warning(handler)
