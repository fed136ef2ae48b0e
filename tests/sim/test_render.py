"""Offscreen pictures, and machines that cannot make any."""

import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from sim import render, scene
from sim.errors import UserError
from sim.render import Renderer
from sim.robots import load_robot


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return scene.build(load_robot("go2"), timestep=0.005)


@pytest.fixture
def offscreen() -> None:
    reason = render.why_unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.usefixtures("offscreen")
def test_picture_shows_the_robot_on_the_ground_under_the_sky(model):
    with Renderer(model, 320, 180) as renderer:
        picture = renderer.render(model.key("home").qpos)
        away = model.key("home").qpos.copy()
        away[2] = -50.0
        empty = renderer.render(away)
    assert picture.shape == (180, 320, 3)
    assert picture.dtype == np.uint8
    top, bottom = picture[:10].astype(int), picture[-10:].astype(int)
    assert (top[..., 2] - top[..., 0]).mean() > 30  # the sky is blue
    assert (bottom[..., 2] - bottom[..., 0]).mean() < 30  # the ground is grey
    middle = picture[60:150, 80:240].astype(int)
    assert (middle.max(-1) < 60).mean() > 0.02  # black motors and legs
    assert (middle.min(-1) > 180).mean() > 0.02  # white body
    assert np.abs(picture.astype(int) - empty).mean() > 1.0


@pytest.mark.usefixtures("offscreen")
def test_pictures_depend_on_the_configuration_alone_and_the_camera_follows(model):
    with Renderer(model, 320, 180) as renderer:
        home = model.key("home").qpos
        first = renderer.render(home)
        moved, turned = home.copy(), home.copy()
        moved[:2] = [4.0, -2.0]  # whole periods of the checker, 2 m
        turned[3:7] = [np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)]
        followed, other = renderer.render(moved), renderer.render(turned)
        np.testing.assert_array_equal(first, renderer.render(home))
    # Rounding in float32 changes single pixels along edges.
    assert (np.abs(first.astype(int) - followed) > 20).mean() < 0.02
    assert (np.abs(first.astype(int) - other) > 20).mean() > 0.03


@pytest.mark.usefixtures("offscreen")
def test_two_renderers_and_a_picture_larger_than_the_files_framebuffer():
    small = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><camera name="c" pos="0 0 3"/><geom size="0.5" rgba="1 0 0 1"/></worldbody></mujoco>'
    )
    assert small.vis.global_.offwidth < 800
    with Renderer(small, 800, 600) as large, Renderer(small, 40, 30) as tiny:
        big = large.render(small.qpos0, "c")
        assert big.shape == (600, 800, 3)
        assert tiny.render(small.qpos0, "c").shape == (30, 40, 3)
        np.testing.assert_array_equal(large.render(small.qpos0, "c"), big)
    assert big[300, 400, 0] > big[300, 400, 1] + 30  # red in the middle, also beyond the old framebuffer's edge
    assert big[5, 795].max() < 30


@pytest.mark.usefixtures("offscreen")
def test_unknown_camera_and_empty_picture_are_the_users_mistakes(model):
    with Renderer(model, 32, 18) as renderer, pytest.raises(UserError, match="did you mean 'track'"):
        renderer.render(model.qpos0, "trak")
    with pytest.raises(UserError, match="0 x 18"):
        Renderer(model, 0, 18)


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), os.getcwd()])
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment, "PYTHONPATH": path}, capture_output=True, text=True
    )


def test_importing_has_no_side_effect():
    done = python("""
import os, sys
before = dict(os.environ)
import sim.render
assert "OpenGL" not in sys.modules
assert dict(os.environ) == before
""")
    assert done.returncode == 0, done.stderr


def test_without_a_library_there_is_one_line_that_says_so(tmp_path):
    # What stands in for PyOpenGL fails to load, as it does where neither libEGL nor libOSMesa is installed.
    (tmp_path / "OpenGL.py").write_text('raise ImportError("no GL library here")\n')
    done = python("""
import mujoco
from sim.errors import UserError
from sim.render import Renderer, why_unavailable
print(why_unavailable())
try:
    Renderer(mujoco.MjSpec().compile())
except UserError as error:
    print(error)
""", PYTHONPATH=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    reason, error = done.stdout.splitlines()
    assert reason.count("no GL library here") == len(render.BACKENDS["Linux"])
    assert "apt-get install" in reason
    assert error == f"cannot render: {reason}"
    assert done.stderr == ""


def test_rendering_can_be_switched_off():
    done = python("from sim.render import why_unavailable; print(why_unavailable())", MUJOCO_GL="off")
    assert done.stdout.strip() == "rendering is switched off by MUJOCO_GL=off"


@pytest.mark.usefixtures("offscreen")
def test_a_renderer_left_open_ends_quietly():
    done = python("""
import mujoco
from sim.render import Renderer
renderer = Renderer(mujoco.MjSpec().compile(), 16, 16)
""")
    assert done.returncode == 0
    assert done.stderr == ""
