"""What every physics backend offers: N worlds of one MuJoCo model on one device."""

from abc import ABC, abstractmethod
from typing import Any

import mujoco
import torch

from sim.errors import unknown


class Simulation(ABC):
    """N worlds of one ``mujoco.MjModel``, stepped together.

    Tensors are live: a backend hands out views of its own memory, so a write to a state field is the world's state
    at its next call and a read after ``step`` sees the new state. Quaternions are MuJoCo's (w, x, y, z).

    Derived fields (``bind``, ``sensor``) describe the state before the last substep, as after ``mj_step``, unless
    ``step`` is asked for the stage that makes them current.
    """

    model: mujoco.MjModel
    """The compiled model all worlds share, apart from the fields given to ``expand``."""
    num_worlds: int
    """Number of worlds N."""
    device: torch.device
    """Where every tensor of this simulation lives."""
    version: int
    """Counts the calls that changed the state; what caches per-step quantities compares it."""

    @property
    def timestep(self) -> float:
        """Physics step in seconds."""
        return float(self.model.opt.timestep)

    qpos: torch.Tensor
    """(N, nq) generalised positions, writable."""
    qvel: torch.Tensor
    """(N, nv) generalised velocities, writable."""
    ctrl: torch.Tensor
    """(N, nu) actuator controls, writable."""
    time: torch.Tensor
    """(N,) simulated time in seconds, writable."""

    @abstractmethod
    def bind(self, field: str) -> torch.Tensor:
        """Return a live (N, ...) tensor of the ``mujoco.MjData`` field of that name.

        Raises:
            UserError: the field does not exist.
        """

    @abstractmethod
    def sensor(self, name: str) -> torch.Tensor:
        """Return the live (N, dim) reading of a named sensor.

        Raises:
            UserError: the model has no sensor of that name.
        """

    @abstractmethod
    def external_forces(self) -> torch.Tensor:
        """Return (N, nbody, 6) the torque, N m, and the force, N, that contacts and applied forces exert on each body.

        World axes, torque about the centre of mass of the body's kinematic tree: ``mjData.cfrc_ext``. They belong to
        the last evaluation of the dynamics inside ``step``, for RK4 its last stage, as when ``mj_rnePostConstraint``
        follows ``mj_step``. The row of the world body is zero. Not for a world that was reset or forwarded since;
        the next call overwrites the tensor.

        Raises:
            UserError: the worlds were made without ``external_forces=True``.
        """

    def id_of(self, kind: str, name: str) -> int:
        """Return the id of a named ``"body"``, ``"joint"``, ``"site"``, ``"geom"`` or ``"actuator"`` of the model.

        Raises:
            UserError: the model has none of that name.
        """
        counts = {"body": "nbody", "joint": "njnt", "site": "nsite", "geom": "ngeom", "actuator": "nu"}
        if kind not in counts:
            raise unknown("kind of object", kind, counts)
        access = getattr(self.model, kind)
        names = [access(i).name for i in range(getattr(self.model, counts[kind]))]
        if name not in names:
            raise unknown(kind, name, names)
        return names.index(name)

    @abstractmethod
    def expand(self, field: str) -> torch.Tensor:
        """Give a model field a value per world and return the live (N, ...) tensor of them."""

    @abstractmethod
    def set_const(self, ids: torch.Tensor | None = None) -> None:
        """Recompute the constants that MuJoCo derives from model fields, after writing to an expanded one.

        Only in the worlds ``ids`` (n,), sorted, or in all of them.
        """

    @abstractmethod
    def step(self, substeps: int = 1, stage: mujoco.mjtStage = mujoco.mjtStage.mjSTAGE_NONE) -> None:
        """Advance every world by ``substeps`` physics steps, then compute the forward stages up to ``stage``."""

    @abstractmethod
    def forward(self, ids: torch.Tensor | None = None) -> None:
        """Compute every derived field from the present state of the worlds ``ids`` (n,), or of all."""

    @abstractmethod
    def reset(self, ids: torch.Tensor | None = None) -> None:
        """Put the worlds ``ids`` (n,), sorted, or all of them, in the model's default state; derived fields wait."""

    @abstractmethod
    def diverged(self) -> torch.Tensor:
        """Return (N,) bool: the worlds whose state became non-finite or huge since their last reset."""

    @abstractmethod
    def drain_warnings(self) -> dict[str, int]:
        """Return how often MuJoCo warned, by kind, since the last call, and start counting anew."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict`` of a simulation of the same model and N."""
