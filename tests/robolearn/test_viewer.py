"""The page that shows a playback, and the window where there is no display."""

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
import torch

from robolearn.playing import Playback
from robolearn.training import default_config, make_env
from robolearn.viewer import WebViewer, show_in_window
from sim.errors import UserError


def playback() -> Playback:
    env = make_env(default_config("Go2-Velocity-Flat", threads=1), num_envs=1)
    return Playback(lambda observation: torch.zeros(len(observation), 12), env)


@pytest.fixture
def viewer() -> Iterator[WebViewer]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = WebViewer(playback(), port=port)
    yield page
    page.close()


def steps(viewer: WebViewer) -> int:
    return viewer.playback.env.common_step_counter


def test_it_serves_a_page_while_it_plays_in_real_time(viewer: WebViewer):
    playing = threading.Thread(target=viewer.run, kwargs={"seconds": 1.0})
    playing.start()
    with urllib.request.urlopen(viewer.url, timeout=10) as answer:
        assert answer.status == 200
        assert b"<html" in answer.read()
    playing.join()
    assert 10 <= steps(viewer) <= 51  # 50 Hz; a busy machine may show fewer, never more


def test_the_server_says_nothing_of_its_own(capsys: pytest.CaptureFixture[str]):
    WebViewer(playback(), port=0).close()
    assert capsys.readouterr().out == ""


def test_pause_step_and_reset(viewer: WebViewer):
    viewer.pause(True)
    viewer.run(seconds=0.2)
    assert steps(viewer) == 0
    viewer.step()
    viewer.step()
    assert steps(viewer) == 2
    assert viewer.paused
    assert float(viewer.playback.worlds.sim.time[0]) == pytest.approx(2 * viewer.playback.env.step_dt)
    viewer.reset()
    assert float(viewer.playback.worlds.sim.time[0]) == 0.0


def test_sliders_command_when_asked_to(viewer: WebViewer):
    assert [(slider.min, slider.max) for slider in viewer.sliders] == [(-1.0, 1.0), (-0.5, 0.5), (-1.0, 1.0)]
    viewer.sliders[0].value = 0.5
    assert viewer.playback.command is None
    viewer.by_hand.value = True
    assert viewer.playback.command is not None
    assert viewer.playback.command.tolist() == [0.5, 0.0, 0.0]
    viewer.by_hand.value = False
    assert viewer.playback.command is None


def test_close_ends_the_playing(viewer: WebViewer):
    playing = threading.Thread(target=viewer.run)
    playing.start()
    viewer.close()
    playing.join(timeout=10)
    assert not playing.is_alive()


def test_a_window_needs_a_display(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"no display.*--viewer web"):
        show_in_window(playback())
