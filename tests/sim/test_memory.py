"""What does not fit into memory is refused before it is made."""

import mujoco
import pytest
import torch

from sim import memory
from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from sim.robots import load_robot
from sim.scene import build

CPU = torch.device("cpu")


def test_free_memory_is_some_of_what_the_machine_has() -> None:
    assert 1e6 < memory.free_memory(CPU) < 1e14


@pytest.mark.parametrize("external_forces", [False, True])
def test_more_worlds_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch, external_forces: bool) -> None:
    model = build(load_robot("cartpole"), timestep=0.01)
    with pytest.raises(UserError, match=r"the state of 1,000,000,000,000 worlds needs .* GB free; lower --num-envs"):
        MujocoSimulation(model, 10**12, external_forces=external_forces)
    # Warm start, controls, applied forces, time and the state proper: what mujoco.batch keeps of each world.
    world = 8 * MujocoSimulation(model, 1)._batch.state.shape[1]
    if external_forces:
        world += mujoco.MjData(model).nbuffer
    monkeypatch.setattr(memory, "free_memory", lambda device: 4 * world)
    MujocoSimulation(model, 4, external_forces=external_forces)
    monkeypatch.setattr(memory, "free_memory", lambda device: 4 * world - 1)
    with pytest.raises(UserError):
        MujocoSimulation(model, 4, external_forces=external_forces)
