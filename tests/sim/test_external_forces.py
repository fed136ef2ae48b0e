"""Forces on the bodies against ``mj_rnePostConstraint`` after ``mj_step``."""

import mujoco
import numpy as np
import pytest
import torch

from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation

BALL = """
<mujoco>
  <option integrator="RK4"><flag autoreset="disable"/></option>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body name="ball" pos="0 0 0.15">
      <freejoint/>
      <geom size="0.1" mass="2"/>
      <body name="arm" pos="0.1 0 0">
        <joint axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.03" mass="0.5"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_forces_are_those_after_mj_step_in_every_world() -> None:
    model = mujoco.MjModel.from_xml_string(BALL)
    worlds = 3
    sim = MujocoSimulation(model, worlds, threads=2, external_forces=True)
    sim.qvel[:, 0] = torch.tensor([0.0, 1.0, -2.0])
    alone = [mujoco.MjData(model) for _ in range(worlds)]
    for data, velocity in zip(alone, (0.0, 1.0, -2.0), strict=True):
        data.qvel[0] = velocity
    for _ in range(60):
        sim.step(3)
        for data in alone:
            mujoco.mj_step(model, data, nstep=3)
            mujoco.mj_rnePostConstraint(model, data)
        np.testing.assert_array_equal(sim.external_forces(), [data.cfrc_ext for data in alone])


def test_ground_bears_the_weight_at_rest() -> None:
    model = mujoco.MjModel.from_xml_string(BALL)
    sim = MujocoSimulation(model, 1, external_forces=True)
    sim.step(5000)
    vertical = sim.external_forces()[0, :, 5].numpy()
    assert vertical.sum() == pytest.approx(2.5 * 9.81, rel=1e-3)
    assert vertical[0] == 0.0


def test_worlds_not_made_for_it_say_so() -> None:
    sim = MujocoSimulation(mujoco.MjModel.from_xml_string(BALL), 1)
    with pytest.raises(UserError, match="external_forces=True"):
        sim.external_forces()
