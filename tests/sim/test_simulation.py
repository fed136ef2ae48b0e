"""The CPU backend against plain ``mj_step``, and what happens to worlds that go wrong."""

from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from sim.robots import load_robot
from sim.scene import build

STATE = mujoco.mjtState.mjSTATE_INTEGRATION


@pytest.fixture(scope="module")
def go2() -> mujoco.MjModel:
    return build(load_robot("go2"), timestep=0.005)


def start(sim: MujocoSimulation, seed: int = 0) -> None:
    """Drop the robots with random joints and controls, so that worlds differ and make contact."""
    generator = torch.Generator().manual_seed(seed)
    home = torch.from_numpy(sim.model.key_qpos[0])
    noise = torch.rand(sim.num_worlds, sim.model.nq, generator=generator, dtype=torch.float64) - 0.5
    noise[:, :7] = 0
    sim.qpos[:] = home + 0.4 * noise
    sim.qvel[:] = torch.rand(sim.num_worlds, sim.model.nv, generator=generator, dtype=torch.float64) - 0.5


def controls(sim: MujocoSimulation, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(sim.num_worlds, sim.model.nu, generator=generator, dtype=torch.float64) - 0.5
    return torch.from_numpy(sim.model.key_ctrl[0]) + noise


def rows(sim: MujocoSimulation) -> torch.Tensor:
    """Return the whole state of every world, (N, n)."""
    return sim.state_dict()["state"]


def plain_loop(
    sim: MujocoSimulation, steps: int, substeps: int, change: Callable[[int, mujoco.MjModel], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the state rows and the sensor readings of one MjData for each world, stepped in a Python loop."""
    states, sensors = [], []
    for world, row in enumerate(rows(sim).numpy()):
        model = mujoco.MjModel.__copy__(sim.model)
        change(world, model)
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, row, STATE)
        for k in range(steps):
            data.ctrl[:] = controls(sim, k)[world]
            for _ in range(substeps):
                mujoco.mj_step(model, data)
        state = np.zeros(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, data, state, STATE)
        states.append(state)
        sensors.append(data.sensordata.copy())
    return np.stack(states), np.stack(sensors)


def test_equals_a_plain_loop_bit_for_bit(go2: mujoco.MjModel):
    sim = MujocoSimulation(go2, 4)
    start(sim)
    masses = torch.tensor([5.0, 6.0, 7.0, 8.0], dtype=torch.float64)
    base = go2.body("base").id
    sim.expand("body_mass")[:, base] = masses
    sim.set_const()

    def change(world: int, model: mujoco.MjModel) -> None:
        model.body_mass[base] = float(masses[world])
        mujoco.mj_setConst(model, mujoco.MjData(model))

    states, sensors = plain_loop(sim, 25, 4, change)
    readings = sim.bind("sensordata")
    for k in range(25):
        sim.ctrl[:] = controls(sim, k)
        sim.step(4)
    np.testing.assert_array_equal(rows(sim).numpy(), states)
    np.testing.assert_array_equal(readings.numpy(), sensors)
    assert len(set(sim.qpos[:, 2].tolist())) == 4


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_results_do_not_depend_on_the_number_of_threads(go2: mujoco.MjModel, threads: int):
    ends = []
    for count in (1, threads):
        sim = MujocoSimulation(go2, 7, threads=count)
        start(sim)
        for k in range(10):
            sim.ctrl[:] = controls(sim, k)
            sim.step(4)
        ends.append(rows(sim))
    assert torch.equal(*ends)


def test_partial_reset_touches_only_those_worlds(go2: mujoco.MjModel):
    sim = MujocoSimulation(go2, 5)
    start(sim)
    sim.step(10)
    before = rows(sim)
    sim.reset(torch.tensor([1, 4]))
    after = rows(sim)
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert torch.equal(sim.qpos[[1, 4]], torch.from_numpy(go2.qpos0).expand(2, -1))
    assert not sim.qvel[[1, 4]].any()
    assert not sim.time[[1, 4]].any()


def test_forward_of_some_worlds_leaves_the_others_fields(go2: mujoco.MjModel):
    sim = MujocoSimulation(go2, 3)
    positions = sim.bind("xpos")
    before = positions.clone()
    sim.qpos[:, 2] += 1.0
    sim.forward(torch.tensor([1]))
    assert torch.equal(positions[[0, 2]], before[[0, 2]])
    # Everything but the world itself is a metre higher.
    torch.testing.assert_close(positions[1, 1:, 2], before[1, 1:, 2] + 1.0, rtol=0.0, atol=1e-12)


def test_sensors_are_fresh_only_with_a_stage(go2: mujoco.MjModel):
    fresh, stale = MujocoSimulation(go2, 2), MujocoSimulation(go2, 2)
    for sim in (fresh, stale):
        start(sim)
        sim.sensor("imu_quat")
    fresh.step(3, stage=mujoco.mjtStage.mjSTAGE_POS)
    stale.step(2)
    data = mujoco.MjData(go2)
    for sim, settled in ((fresh, True), (stale, False)):
        for world in range(2):
            mujoco.mj_setState(go2, data, rows(sim)[world].numpy(), STATE)
            mujoco.mj_forward(go2, data)
            now = torch.from_numpy(data.sensor("imu_quat").data)
            assert torch.equal(sim.sensor("imu_quat")[world], now) == settled


def test_binding_a_field_does_not_change_the_run(go2: mujoco.MjModel):
    plain, curious = MujocoSimulation(go2, 2), MujocoSimulation(go2, 2)
    for sim in (plain, curious):
        start(sim)
        sim.bind("site_xpos")
        sim.step(30)
    torques = curious.bind("qfrc_actuator")
    assert torques.any()
    assert torch.equal(curious.bind("site_xpos"), plain.bind("site_xpos"))
    for sim in (plain, curious):
        sim.step(30)
    assert torch.equal(rows(plain), rows(curious))


def test_expanded_mass_needs_and_gets_its_constants(go2: mujoco.MjModel):
    sim = MujocoSimulation(go2, 3)
    base = go2.body("base").id
    weights = sim.expand("body_subtreemass")
    before = weights.clone()
    sim.expand("body_mass")[1, base] += 2.0
    sim.set_const(torch.tensor([1]))
    # A sum of thirteen masses.
    assert float(weights[1, base] - before[1, base]) == pytest.approx(2.0, abs=1e-13)
    assert torch.equal(weights[[0, 2]], before[[0, 2]])
    assert float(go2.body_mass[base]) != pytest.approx(float(sim.expand("body_mass")[1, base]))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e12])
def test_a_diverged_world_is_seen_by_index_and_alone(go2: mujoco.MjModel, poison: float):
    sick, well = MujocoSimulation(go2, 4, threads=2), MujocoSimulation(go2, 4, threads=2)
    for sim in (sick, well):
        start(sim)
        sim.step(2)
    sick.qvel[2, 3] = poison
    for sim in (sick, well):
        sim.step(4)
    assert sick.diverged().tolist() == [False, False, True, False]
    assert not well.diverged().any()
    others = [0, 1, 3]
    assert torch.equal(rows(sick)[others], rows(well)[others])
    sick.reset(torch.tensor([2]))
    sick.forward(torch.tensor([2]))
    sick.step(4)
    assert not sick.diverged().any()
    assert torch.isfinite(rows(sick)).all()


def test_divergence_is_silent_and_warnings_are_drained_once(
    go2: mujoco.MjModel, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sim = MujocoSimulation(go2, 3, threads=2)
    sim.qvel[0, 0] = float("nan")
    sim.qvel[2, 0] = float("nan")
    sim.step(5)
    assert sim.drain_warnings()["badqvel"] == 10
    assert sim.drain_warnings() == {}
    sim.step(1)
    sim.reset(torch.tensor([0]))  # clears MuJoCo's own counters; ours must survive it
    assert sim.drain_warnings()["badqvel"] == 2
    sim.reset()
    sim.step(1)
    assert sim.drain_warnings() == {}
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_resumes_bit_for_bit(go2: mujoco.MjModel):
    def fresh() -> MujocoSimulation:
        sim = MujocoSimulation(go2, 3)
        sim.sensor("FR_foot_contact")
        sim.bind("site_xpos")
        return sim

    first = fresh()
    start(first)
    first.expand("geom_friction")[:, go2.geom("FR_foot").id, 0] = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    first.expand("body_mass")[1] *= 1.1
    first.set_const()
    first.ctrl[:] = controls(first, 0)
    first.step(30)
    saved = first.state_dict()
    second = fresh()
    second.load_state_dict(saved)
    assert torch.equal(rows(second), rows(first))
    for field in ("sensordata", "site_xpos"):  # a substep behind the state: not to be had from the state alone
        assert torch.equal(second.bind(field), first.bind(field))
    for sim in (first, second):
        sim.ctrl[:] = controls(sim, 1)
        sim.step(30)
    assert torch.equal(rows(second), rows(first))
    for field in ("sensordata", "site_xpos"):
        assert torch.equal(second.bind(field), first.bind(field))


def test_a_saved_state_is_a_copy(go2: mujoco.MjModel):
    sim = MujocoSimulation(go2, 1)
    saved = sim.state_dict()["state"]
    before = saved.clone()
    sim.step(3)
    assert torch.equal(saved, before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sim: sim.sensor("FR_fot_contact"), "unknown sensor 'FR_fot_contact'; did you mean 'FR_foot_contact'?"),
        (lambda sim: sim.bind("sensor_data"), "unknown MjData field 'sensor_data'; did you mean 'sensordata'?"),
        (lambda sim: sim.id_of("body", "FL_tigh"), "unknown body 'FL_tigh'; did you mean 'FL_thigh'?"),
        (lambda sim: sim.expand("body_mas"), "unknown MjModel field 'body_mas'; did you mean 'body_mass'?"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(
    go2: mujoco.MjModel, call: Callable[[MujocoSimulation], object], message: str
):
    with pytest.raises(UserError) as error:
        call(MujocoSimulation(go2, 1))
    assert str(error.value) == message


def test_a_model_that_hides_divergence_is_refused():
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><body/></worldbody></mujoco>")
    with pytest.raises(UserError, match="autoreset"):
        MujocoSimulation(model, 1)


def test_no_worlds_are_refused(go2: mujoco.MjModel):
    with pytest.raises(UserError, match="num_envs must be at least 1, not 0"):
        MujocoSimulation(go2, 0)
