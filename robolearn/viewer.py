"""Live views of a playback: in the browser, and in MuJoCo's own window."""

import io
import logging
import os
import platform
import threading
import time
from contextlib import AbstractContextManager, redirect_stdout

import mujoco
import numpy as np

from robolearn.playing import Playback
from sim.errors import UserError, missing

SPEEDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Playback speeds on offer, as multiples of real time."""
SLOWEST_PICTURES = 1 / 30
"""Longest time between two pictures sent to a browser, s of wall clock."""


class WebViewer:
    """A page that shows a playback, with pause, step, reset, speed and the task's commands."""

    def __init__(self, playback: Playback, host: str = "127.0.0.1", port: int = 8080):
        """Serve the page.

        Args:
            playback: what to show.
            host: address to listen on; ``0.0.0.0`` for other machines too.
            port: port to listen on; the next free one if it is taken.

        Raises:
            UserError: the packages are not installed, or no port can be had.
        """
        try:
            import viser
            from mjviser import ViserMujocoScene
        except ModuleNotFoundError as error:
            raise missing("the web viewer", str(error.name), "viewer") from None
        # A browser that opens a connection and drops it is no error, and would be a traceback.
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
        self.playback = playback
        self._lock = threading.RLock()
        self._data = mujoco.MjData(playback.model)
        try:
            with _quiet():
                self._server = viser.ViserServer(host=host, port=port, verbose=False)
        except OSError as error:
            raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        self._scene = ViserMujocoScene(self._server, playback.model, num_envs=1)
        self._scene.set_refresh_handler(self._show)
        self.paused, self._closing = False, threading.Event()
        self._controls()
        self._show()

    @property
    def url(self) -> str:
        """Where the page is."""
        host = self._server.get_host()
        return f"http://{'localhost' if host in ('0.0.0.0', '127.0.0.1') else host}:{self._server.get_port()}"

    def run(self, seconds: float | None = None) -> None:
        """Play in real time until ``close``, an interrupt, or ``seconds`` of wall-clock time."""
        dt, began = self.playback.env.step_dt, time.monotonic()
        due = shown = began
        while not self._closing.is_set() and (seconds is None or time.monotonic() - began < seconds):
            speed = float(self._speed.value)
            if self.paused:
                due = time.monotonic()
            else:
                with self._lock:
                    self.playback.step()
                due += dt / speed
            now = time.monotonic()
            if now - shown >= SLOWEST_PICTURES or self._scene.needs_update:
                shown = now
                self._show()
            due = max(due, now - SLOWEST_PICTURES)  # a machine that is too slow does not run after lost time
            self._closing.wait(max(due - now, 0.0) if not self.paused else SLOWEST_PICTURES)

    def close(self) -> None:
        """Stop ``run`` and the server."""
        self._closing.set()
        with _quiet():
            self._server.stop()

    def pause(self, paused: bool) -> None:
        """Hold the playback, or let it go on."""
        self.paused = paused
        self._pause.label = "Play" if paused else "Pause"

    def step(self) -> None:
        """Hold the playback and take one control step."""
        with self._lock:
            self.pause(True)
            self.playback.step()
            self._show()

    def reset(self) -> None:
        """Begin a new episode."""
        with self._lock:
            self.playback.reset()
            self._show()

    def _show(self) -> None:
        with self._lock:
            self.playback.write_state(self._data)
            self._scene.update_from_mjdata(self._data)
            self._status.content = (
                f"time {self._data.time:.1f} s, return {self.playback.episode_return:.1f}, "
                f"episodes {len(self.playback.finished)}"
            )

    def _controls(self) -> None:
        gui = self._server.gui
        self._status = gui.add_markdown("")
        self._pause, step, reset = (gui.add_button(label) for label in ("Pause", "Step", "Reset"))
        self._speed = gui.add_dropdown("Speed", options=[str(s) for s in SPEEDS], initial_value="1.0")
        self._pause.on_click(lambda _: self.pause(not self.paused))
        step.on_click(lambda _: self.step())
        reset.on_click(lambda _: self.reset())
        if self.playback.commands:
            self._command_controls()
        with gui.add_folder("Scene"):
            self._scene.create_scene_gui()
        with gui.add_folder("Overlays", expand_by_default=False):
            self._scene.create_overlay_gui()

    def _command_controls(self) -> None:
        gui, playback = self._server.gui, self.playback
        with gui.add_folder("Command"):
            self.by_hand = gui.add_checkbox("Set by hand", initial_value=playback.command is not None)
            self.sliders = []
            for i, (name, unit, (low, high)) in enumerate(playback.commands):
                step = (high - low) / 100 or 1.0
                value = 0.0 if playback.command is None else float(playback.command[i])
                self.sliders.append(
                    gui.add_slider(
                        f"{name.replace('_', ' ')}, {unit}",
                        min=low,
                        max=max(high, low + step),
                        step=step,
                        initial_value=min(max(value, low), high),
                    )
                )
        for control in (self.by_hand, *self.sliders):
            control.on_update(self._command)

    def _command(self, _: object) -> None:
        values = np.array([slider.value for slider in self.sliders])
        with self._lock:
            self.playback.command = values if self.by_hand.value else None


def show_in_window(playback: Playback, seconds: float | None = None) -> None:
    """Play in MuJoCo's own window, in real time, until it is closed, an interrupt, or ``seconds`` have passed.

    Raises:
        UserError: there is no display.
    """
    if platform.system() == "Linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UserError("there is no display for MuJoCo's window; use --viewer web or --video FILE.mp4")
    import mujoco.viewer

    data = mujoco.MjData(playback.model)
    playback.write_state(data)
    before = set(threading.enumerate())
    began = time.monotonic()
    due = began
    with mujoco.viewer.launch_passive(playback.model, data) as window:
        while window.is_running() and (seconds is None or time.monotonic() - began < seconds):
            playback.step()
            with window.lock():
                playback.write_state(data)
            window.sync()
            due = max(due + playback.env.step_dt, time.monotonic() - 0.1)
            time.sleep(max(due - time.monotonic(), 0.0))
    # The window closes itself in a thread of its own, which crashes if the program ends meanwhile.
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10.0)


def _quiet() -> AbstractContextManager[object]:
    """Keep the server from announcing itself on stdout, whatever it was told of verbosity."""
    return redirect_stdout(io.StringIO())
