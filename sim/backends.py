"""Physics backends by name."""

from collections.abc import Callable

import mujoco

from sim.errors import UserError, unknown
from sim.simulation import Simulation


def _mujoco(
    model: mujoco.MjModel, num_worlds: int, device: str, threads: int | None, external_forces: bool
) -> Simulation:
    from sim.mujoco_cpu import MujocoSimulation

    if device != "cpu":
        raise UserError(f"the backend 'mujoco' runs on the CPU; use --device cpu, not {device}")
    return MujocoSimulation(model, num_worlds, threads, external_forces)


BACKENDS: dict[str, Callable[[mujoco.MjModel, int, str, int | None, bool], Simulation]] = {"mujoco": _mujoco}
"""What makes a simulation: ``(model, N, device, CPU threads or None for all, whether to keep external forces)``."""


def make_simulation(
    name: str,
    model: mujoco.MjModel,
    num_worlds: int,
    device: str = "cpu",
    threads: int | None = None,
    external_forces: bool = False,
) -> Simulation:
    """Return N worlds of a model on a backend, able to tell the external forces if that is asked for.

    Raises:
        UserError: there is no such backend, or it does not run on the device.
    """
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name](model, num_worlds, device, threads, external_forces)
