"""Changes to the worlds: that they change the motion as physics says, when they should, where they should."""

from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch

from sim import quaternion
from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from tasks.env import Env
from tasks.events import Change, at_reset, at_start, every, payload, scale
from tasks.events import push as push_base

Make = Callable[..., Any]
FORCE = 2.0


def accelerations(env: Env) -> torch.Tensor:
    """Return (N,) the change of velocity in one control step under the same force, over its time."""
    before = env.sim.qvel[:, 0].clone()
    env.step(torch.full((env.num_envs, 1), FORCE))
    return (env.sim.qvel[:, 0] - before) / env.step_dt


def test_a_heavier_body_accelerates_less(slider: Make):
    env = slider(worlds=50, events=[at_start(scale("body_mass", of="mass", by=(0.5, 2.0)))])
    masses = env.sim.expand("body_mass")[:, 1]
    assert float(masses.min()) >= 0.5
    assert float(masses.max()) <= 2.0
    assert len(set(masses.tolist())) == 50
    torch.testing.assert_close(accelerations(env), FORCE / masses, rtol=1e-12, atol=0.0)


def test_inertia_follows_mass(slider: Make):
    env = slider(worlds=5, events=[at_start(scale("body_mass", of="mass", by=(0.5, 2.0)))])
    factor = env.sim.expand("body_mass")[:, 1]  # of 1 kg
    nominal = torch.from_numpy(env.sim.model.body_inertia[1])
    torch.testing.assert_close(env.sim.expand("body_inertia")[:, 1], factor[:, None] * nominal, rtol=1e-15, atol=0.0)


def test_payload_adds_its_mass(slider: Make):
    env = slider(worlds=5, events=[at_start(payload(on="mass", mass=(3.0, 3.0)))])
    torch.testing.assert_close(
        accelerations(env), torch.full((5,), FORCE / 4, dtype=torch.float64), rtol=1e-12, atol=0.0
    )


def test_start_events_last_and_reset_events_are_drawn_anew_for_their_worlds_only(slider: Make):
    def masses_after_a_partial_reset(moment: Callable) -> tuple[torch.Tensor, torch.Tensor]:
        env = slider(events=[moment(scale("body_mass", of="mass", by=(0.5, 2.0)))])
        before = env.sim.expand("body_mass")[:, 1].clone()
        env.reset(options={"reset_mask": torch.tensor([False, True, False])})
        return before, env.sim.expand("body_mass")[:, 1]

    before, after = masses_after_a_partial_reset(at_start)
    assert torch.equal(before, after)
    before, after = masses_after_a_partial_reset(at_reset)
    assert (before == after).tolist() == [True, False, True]


def test_an_interval_event_comes_in_its_time(slider: Make):
    times: list[list[int]] = []

    def note(task, ids: torch.Tensor) -> None:
        times.append(ids.tolist())

    env = slider(worlds=2, events=[every(0.12, Change("note", note))])
    times.clear()
    for _ in range(9):
        times.append([-1])
        env.step(torch.zeros(2, 1))
    # 0.12 s is three control steps.
    assert times == [[-1], [-1], [-1], [0, 1]] * 3


def test_interval_times_are_drawn_in_their_range(slider: Make):
    env = slider(worlds=400, events=[every((0.4, 0.8), Change("nothing", lambda task, ids: None))])
    timers = env.task.buffers["event_timers"][:, 0]
    assert 0.4 <= float(timers.min()) < 0.42
    assert 0.78 < float(timers.max()) <= 0.8


def test_a_push_changes_the_horizontal_velocity_of_the_base(env_of: Make):
    env = env_of("Go2-Velocity-Flat", worlds=100, push_velocity=0.0)
    before = env.sim.qvel.clone()
    push_base(0.5).operation(env.task, torch.arange(0, 100, 2))
    change = env.sim.qvel - before
    assert not change[1::2].any()
    assert not change[:, 2:].any()
    assert (change[::2, :2] != 0).all()
    assert 0.45 < float(change.abs().max()) <= 0.5


def test_pushes_are_felt_and_seen(env_of: Make):
    still = {"push_velocity": 0.0, "noise": dict.fromkeys(["angular_velocity", "gravity"], 0.0)}
    pushed = env_of("Go2-Velocity-Flat", **still | {"push_velocity": 1.0}, push_every_s=(0.02, 0.02))
    obs, *_ = pushed.step(torch.zeros(4, 12))
    # A push comes after the physics and before the observation, which therefore shows it.
    names = list(pushed.observation_terms["critic"])
    start = sum(pushed.observation_terms["critic"][name] for name in names[: names.index("linear_velocity")])
    shown = obs["critic"][:, start : start + 3]
    now = quaternion.rotate_inverse(pushed.sim.qpos[:, 3:7], pushed.sim.qvel[:, :3])
    torch.testing.assert_close(shown, now.float(), rtol=0.0, atol=1e-6)
    assert float(shown[:, :2].abs().max()) > 0.2


def test_friction_decides_how_far_a_box_slides():
    model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <option timestep="0.002"><flag autoreset="disable"/></option>
      <worldbody>
        <geom name="floor" type="plane" size="5 5 0.1" friction="0.01"/>
        <body name="box" pos="0 0 0.1">
          <freejoint/>
          <geom name="block" type="box" size="0.2 0.2 0.1" friction="0.4" priority="1"/>
        </body>
      </worldbody>
    </mujoco>""")

    class Holder:
        sim = MujocoSimulation(model, 2)

        def uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
            return torch.tensor([[1.0], [2.0]], dtype=torch.float64)

    holder = Holder()
    scale("geom_friction", of="block", by=(1.0, 2.0)).operation(holder, torch.arange(2))
    holder.sim.step(100)
    holder.sim.qvel[:, 0] = 1.0
    start = holder.sim.qpos[:, 0].clone()
    holder.sim.step(500)
    slid = holder.sim.qpos[:, 0] - start
    # v^2 / (2 mu g), to what MuJoCo's soft contacts add.
    torch.testing.assert_close(
        slid, torch.tensor([1 / (2 * 0.4 * 9.81), 1 / (2 * 0.8 * 9.81)]).double(), rtol=0.05, atol=0
    )


def test_a_reset_event_leaves_other_worlds_bit_for_bit(env_of: Make):
    class Event(type(env_of("Go2-Velocity-Flat").task)):
        def randomise(self):
            yield at_reset(scale("body_mass", of="base", by=(1.0, 1.0)))

    def make() -> Env:
        task = Event(Event.Config(push_velocity=0.0))
        return Env(task, MujocoSimulation(task.model(), 3, threads=1))

    env, twin = make(), make()
    for e in (env, twin):
        for _ in range(10):
            e.step(torch.zeros(3, 12))
    env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    for e in (env, twin):
        e.sim.step(20)
    assert torch.equal(env.sim.qpos[[0, 2]], twin.sim.qpos[[0, 2]])
    assert not torch.equal(env.sim.qpos[1], twin.sim.qpos[1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda: scale("body_mass", of="mas", by=(1, 1)), "unknown body 'mas'; did you mean 'mass'?"),
        (lambda: scale("geom_friction", of="blok", by=(1, 1)), "unknown geom 'blok'; did you mean 'block'?"),
        (lambda: scale("dof_damping", of="rial", by=(1, 1)), "unknown dof 'rial'; did you mean 'rail'?"),
        (lambda: scale("actuator_gear", of="moto", by=(1, 1)), "unknown actuator 'moto'; did you mean 'motor'?"),
        (
            lambda: scale("body_mas", of="mass", by=(1, 1)),
            "unknown MjModel field 'body_mas'; did you mean 'body_mass'?",
        ),
        (lambda: scale("bdy_mass", of="mass", by=(1, 1)), "unknown model field prefix 'bdy'; did you mean 'body'?"),
        (lambda: payload(on="mas", mass=(1, 1)), "unknown body 'mas'; did you mean 'mass'?"),
        (
            lambda: scale("body_mass", of="mass", by=(2, 1)),
            "scale body_mass: the range must be positive and ordered, not (2, 1)",
        ),
    ],
)
@pytest.mark.parametrize("moment", [at_start, at_reset, lambda change: every(5.0, change)])
def test_names_are_checked_at_construction(slider: Make, change: Callable, text: str, moment: Callable):
    with pytest.raises(UserError) as error:
        slider(events=[moment(change())])
    assert str(error.value) == text


@pytest.mark.parametrize("seconds", [0.0, -1.0, (2.0, 1.0)])
def test_an_interval_has_to_be_positive_and_ordered(seconds: float | tuple[float, float]):
    with pytest.raises(UserError, match=r"event push: the interval must be positive and ordered"):
        every(seconds, push_base(1.0))
