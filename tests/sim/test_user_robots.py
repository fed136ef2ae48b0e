"""Robots of the user's own: MJCF and URDF files, mujoco-menagerie, and the mistakes in them."""

import math
import sys
import types
from pathlib import Path

import mujoco
import pytest

from sim import scene
from sim.errors import UserError
from sim.robot import SERVO_FREQUENCY
from sim.robots import load_robot

MJCF = """
<mujoco><worldbody>
  <body name="trunk" pos="0 0 0.5"><freejoint/><geom size="0.1" mass="2"/>
    <body name="arm"><joint name="shoulder" axis="0 1 0" range="-90 90"/>
      <geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.02"/>
      <body name="tip" pos="0 0 0.3"><joint name="wrist" axis="0 1 0"/><geom size="0.03" pos="0 0 0.1"/>
        <site name="toe" pos="0 0 0.1"/></body></body>
  </body></worldbody>
  <actuator>
    <motor joint="wrist" gear="3" ctrlrange="-2 2"/>
    <position joint="shoulder" kp="20" kv="2" forcerange="-7 7"/>
  </actuator>
  <sensor><touch name="toe_contact" site="toe"/><gyro site="toe"/></sensor>
</mujoco>"""

URDF = """
<robot name="two_links">
  <link name="root"><inertial><mass value="3"/>
    <inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>
  <link name="upper"><inertial><origin xyz="0 0 -0.2"/><mass value="1"/>
    <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.001"/></inertial></link>
  <link name="slider"><inertial><mass value="0.5"/>
    <inertia ixx="0.001" ixy="0" ixz="0" iyy="0.001" iyz="0" izz="0.001"/></inertial></link>
  <joint name="shoulder" type="revolute"><parent link="root"/><child link="upper"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="40" velocity="5"/></joint>
  <joint name="extend" type="prismatic"><parent link="upper"/><child link="slider"/>
    <origin xyz="0 0 -0.4"/><axis xyz="0 0 1"/>
    <limit lower="-0.1" upper="0.1" effort="60" velocity="1"/></joint>
</robot>"""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_users_mjcf_is_described_from_its_actuators(tmp_path):
    robot = load_robot(write(tmp_path, "mine.xml", MJCF))
    assert (robot.name, robot.base, robot.base_height) == ("mine", "trunk", 0.5)
    assert robot.joints == ("wrist", "shoulder")  # the order of the actuators, not of the tree
    assert robot.default_position == (0.0, 0.0)
    assert (robot.kp, robot.kd) == ((0.0, 20.0), (0.0, 2.0))
    assert robot.effort == (6.0, 7.0)  # 2 N m through a gear of 3; the servo's force range
    assert robot.velocity_limit == (math.inf, math.inf)
    assert (robot.feet, robot.imu_site) == (("toe",), "toe")


def test_a_urdf_gets_servos_that_hold_it(tmp_path):
    robot = load_robot(write(tmp_path, "mine.urdf", URDF))
    assert robot.joints == ("shoulder", "extend")
    assert robot.effort == (40.0, 60.0)
    omega = 2 * math.pi * SERVO_FREQUENCY
    assert robot.kp[1] == pytest.approx(0.5 * omega**2)  # the slider's mass
    assert robot.kd[1] == pytest.approx(2 * 0.5 * omega)
    model = scene.build(robot, timestep=0.002)
    assert [model.actuator(i).name for i in range(model.nu)] == list(robot.joints)
    data = mujoco.MjData(model)
    data.qpos[0] = 0.5
    mujoco.mj_step(model, data, 1000)
    # Slides sag by g / w^2 under their own weight: 1 cm at 5 Hz.
    assert data.qpos[1] == pytest.approx(-9.81 / omega**2, rel=0.01)
    assert abs(data.qpos[0]) < 1e-3


@pytest.mark.parametrize("suffix", ["mjcf", "XML"])
def test_other_suffixes_of_a_file(tmp_path, suffix):
    write(tmp_path, "limits.xml", '<mujoco><default><joint limited="false"/></default></mujoco>')
    text = MJCF.replace("<mujoco>", '<mujoco><include file="limits.xml"/>')
    robot = load_robot(write(tmp_path, f"mine.{suffix}", text))
    assert robot.base == "trunk"
    assert scene.build(robot, timestep=0.002).nu == 2


def mistake(name: str) -> str:
    with pytest.raises(UserError) as caught:
        load_robot(name)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_mistakes_are_told_in_one_line_that_names_the_file(tmp_path):
    assert mistake("goo2").endswith("did you mean 'go2'?")
    assert "known: cartpole, g1, go2, panda, pendulum" in mistake("zzzzzz")
    missing = str(tmp_path / "absent.xml")
    assert mistake(missing) == f"no robot file {missing!r}"
    malformed = write(tmp_path, "malformed.xml", "<mujoco><worldbody>\n<body></worldbody>\n</mujoco>")
    assert malformed in mistake(malformed)
    attribute = write(tmp_path, "attribute.xml", '<mujoco>\n<worldbody><body massive="1"/></worldbody></mujoco>')
    assert "massive" in mistake(attribute)
    no_mass = write(tmp_path, "mass.xml", '<mujoco><worldbody><body name="b"><freejoint/></body></worldbody></mujoco>')
    assert "mass" in mistake(no_mass)
    shape = '<collision><geometry><mesh filename="absent.stl"/></geometry></collision>'
    mesh = write(tmp_path, "mesh.urdf", URDF.replace("</inertial></link>", f"</inertial>{shape}</link>", 1))
    assert "absent.stl" in mistake(mesh)
    empty = write(tmp_path, "empty.xml", "<mujoco/>")
    assert mistake(empty) == f"{empty} holds no robot: it has no body"
    stone = write(tmp_path, "stone.xml", '<mujoco><worldbody><body><geom size="1"/></body></worldbody></mujoco>')
    assert mistake(stone) == f"{stone} has no hinge or slide joint to drive"
    unnamed = MJCF.replace('name="wrist" ', "").replace('<motor joint="wrist" gear="3" ctrlrange="-2 2"/>', "")
    unnamed = unnamed.replace('<position joint="shoulder" kp="20" kv="2" forcerange="-7 7"/>', "")
    nameless = write(tmp_path, "nameless.xml", unnamed)
    assert mistake(nameless) == f"{nameless}: the joint of body 'tip' needs a name"
    baseless = write(tmp_path, "baseless.xml", MJCF.replace('<body name="trunk" ', "<body "))
    assert mistake(baseless) == f"{baseless}: body 1, the robot's base, needs a name"
    custom = '<custom><numeric name="velocity_limit" data="1 2 3"/></custom>'
    speeds = write(tmp_path, "speeds.xml", MJCF.replace("<sensor>", f"{custom}<sensor>"))
    assert mistake(speeds) == f"{speeds}: the numeric 'velocity_limit' has 3 values for 2 joints"


def test_menagerie_that_is_not_installed_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
    assert mistake("menagerie:unitree_go1").endswith("pip install mujoco-menagerie")


class Menagerie(types.ModuleType):
    """The part of mujoco_menagerie 2026.10 that is called: names(), get(name).default_model and .xml(entry)."""

    class MenagerieError(Exception):
        pass

    def __init__(self, file: Path | None):
        super().__init__("mujoco_menagerie")
        self.file = file

    def names(self) -> list[str]:
        return ["unitree_go1"]

    def get(self, name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(default_model="go1", xml=self.xml)

    def xml(self, entry: str) -> Path:
        assert entry == "go1"
        if self.file is None:
            raise self.MenagerieError("https://example.org/go1.tar.xz:\n<urlopen error>")
        return self.file


def test_menagerie_robot(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", Menagerie(Path(write(tmp_path, "go1.xml", MJCF))))
    robot = load_robot("menagerie:unitree_go1")
    assert (robot.name, robot.base) == ("menagerie:unitree_go1", "trunk")
    assert "did you mean 'unitree_go1'?" in mistake("menagerie:unitre_go1")
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", Menagerie(None))
    assert "<urlopen error>; a checkout" in mistake("menagerie:unitree_go1")
