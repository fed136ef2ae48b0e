"""Pictures of a model without a display, through whichever offscreen OpenGL library the machine has."""

import atexit
import functools
import importlib
import os
import platform
import subprocess
import sys

import mujoco
import numpy as np

from sim.errors import UserError, unknown

BACKENDS = {"Linux": ("egl", "osmesa"), "Darwin": ("cgl",), "Windows": ("glfw",)}
"""MuJoCo's context modules in the order they are tried."""
INSTALL = {"Linux": "; install one, e.g. on Debian: apt-get install libegl1 or libosmesa6"}
PROBE_TIMEOUT = 60.0
"""Seconds after which a driver that does not answer counts as absent."""

# Run in a process of its own: a broken driver may crash, and PyOpenGL cannot change its platform once loaded.
_PROBE = """
import importlib, sys, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(16, 16)
context.make_current()
model = mujoco.MjSpec().compile()
mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value).free()
context.free()
"""


class Renderer:
    """Draws one model offscreen; close it, or use it in a ``with`` block, to free the OpenGL context."""

    def __init__(self, model: mujoco.MjModel, width: int = 640, height: int = 480):
        """Create the OpenGL context.

        Args:
            model: what to draw.
            width: of the pictures, pixels.
            height: of the pictures, pixels.

        Raises:
            UserError: the machine has no offscreen OpenGL library that works, or the size is not positive.
        """
        if width < 1 or height < 1:
            raise UserError(f"a picture must have at least one pixel, not {width} x {height}")
        backend, reason = _backend()
        if backend is None:
            raise UserError(f"cannot render: {reason}")
        self.model = model
        self._data = mujoco.MjData(model)
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._option = mujoco.MjvOption()
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_resizeOffscreen(width, height, self._context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        # Registered after EGL's own exit handler, so run before it: a context freed later than the display is an error.
        atexit.register(self.close)

    def render(self, qpos: np.ndarray, camera: str | None = "track") -> np.ndarray:
        """Return the picture of a configuration.

        Args:
            qpos: (nq,) generalised position; quaternions in it are (w, x, y, z).
            camera: name of a camera of the model, or None to see the whole model from the side.

        Returns:
            (height, width, 3) uint8, RGB, first row on top.

        Raises:
            UserError: the model has no such camera.
        """
        view = mujoco.MjvCamera()
        if camera is None:
            mujoco.mjv_defaultFreeCamera(self.model, view)
        else:
            view.type = mujoco.mjtCamera.mjCAMERA_FIXED
            view.fixedcamid = self._camera_id(camera)
        self._data.qpos[:] = qpos
        mujoco.mj_fwdPosition(self.model, self._data)
        mujoco.mjv_updateScene(
            self.model, self._data, self._option, None, view, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        assert self._gl is not None, "the renderer is closed"
        self._gl.make_current()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        picture = np.empty((self._rect.height, self._rect.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, self._rect, self._context)
        return picture[::-1].copy()

    def close(self) -> None:
        """Free the OpenGL context; the renderer cannot be used afterwards."""
        atexit.unregister(self.close)
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _camera_id(self, name: str) -> int:
        camera = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        if camera < 0:
            raise unknown("camera", name, [self.model.camera(i).name for i in range(self.model.ncam)])
        return camera


def why_unavailable() -> str | None:
    """Return why this machine cannot render offscreen, in one line, or None if it can."""
    return _backend()[1]


def offscreen_backend() -> str | None:
    """Return the name of the context module that draws without a display, or None if there is none."""
    return _backend()[0]


def _backend() -> tuple[str | None, str | None]:
    """Return the first context module that works, or None and the reason why none does."""
    system = platform.system()
    candidates = BACKENDS.get(system, ("egl", "osmesa"))
    # An explicit choice, or a PyOpenGL that is already loaded for one platform, leaves nothing else to try.
    chosen = os.environ.get("MUJOCO_GL", "").lower() or os.environ.get("PYOPENGL_PLATFORM", "").lower()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        return None, f"rendering is switched off by MUJOCO_GL={chosen}"
    if chosen in candidates:
        candidates = (chosen,)
    reasons = []
    for name in candidates:
        reason = _probe(name)
        if reason is None:
            return name, None
        reasons.append(f"{name}: {reason}")
    return None, f"no offscreen OpenGL library works ({'; '.join(reasons)}){INSTALL.get(system, '')}"


@functools.cache
def _probe(backend: str) -> str | None:
    """Return why a context module does not work here, or None."""
    environment = {**os.environ, "MUJOCO_GL": backend}
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_TIMEOUT:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
