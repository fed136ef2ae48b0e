"""Playback: the world it shows, the command it gives, and the videos it writes."""

from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robolearn.playing import Playback, fix_command, record
from robolearn.training import default_config, make_env
from sim.errors import UserError
from sim.render import why_unavailable


def playback(task: str) -> Playback:
    env = make_env(default_config(task, threads=1), num_envs=1)
    actions = len(env.action_term.low)
    return Playback(lambda observation: torch.zeros(len(observation), actions), env)


def test_it_plays_without_noise_and_disturbances(go2_run: Path):
    config = Playback.of(go2_run).worlds.cfg
    assert set(config.noise.values()) == {0.0}
    assert config.push_velocity == 0.0


def test_a_run_and_its_export_play_alike(go2_run: Path, go2_onnx: Path):
    states = []
    for source in (go2_run, go2_onnx):
        shown = Playback.of(source, seed=3)
        for _ in range(20):
            shown.step()
        states.append(shown.qpos)
    # Both networks agree to 1e-5 in the action at each step; contacts amplify that within 0.4 s, though not to a mm.
    assert states[0] == pytest.approx(states[1], abs=1e-3)


def test_the_command_reaches_the_task_and_the_observation():
    seen = []
    env = make_env(default_config("Go2-Velocity-Flat", threads=1), num_envs=1)

    def act(observation: torch.Tensor) -> torch.Tensor:
        seen.append(observation.clone())
        return torch.zeros(1, 12)

    shown = Playback(act, env)
    fix_command(shown, [0.5, 0.25, -0.75])
    for _ in range(3):
        shown.step()
        assert shown.worlds.task.buffers["command"][0].tolist() == [0.5, 0.25, -0.75]
    start = sum(size for name, size in env.observation_terms["policy"].items() if name != "command")
    assert list(env.observation_terms["policy"])[-1] == "command"
    assert [row[0, start:].tolist() for row in seen] == [[0.5, 0.25, -0.75]] * 3


def test_a_command_has_to_fit_the_task():
    with pytest.raises(UserError, match=r"has 3 numbers .*linear_velocity_x m/s.*, not 2"):
        fix_command(playback("Go2-Velocity-Flat"), [0.0, 0.0])
    with pytest.raises(UserError, match="takes no command"):
        fix_command(playback("CartPole-Balance"), [0.0])


def test_the_state_it_shows_is_the_worlds():
    shown = playback("Go2-Velocity-Flat")
    for _ in range(5):
        shown.step()
    data = mujoco.MjData(shown.model)
    shown.write_state(data)
    assert data.qpos.tolist() == shown.worlds.sim.qpos[0].tolist()
    assert data.time == pytest.approx(5 * shown.env.step_dt)
    trunk = shown.model.body("base").id
    assert data.xpos[trunk] == pytest.approx(data.qpos[:3])


def test_episodes_that_end_are_counted():
    shown = playback("CartPole-Balance")
    while not shown.finished:
        shown.step()
    assert shown.episode_return == 0.0
    assert shown.finished[0] > 0.0


@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
@pytest.mark.parametrize(("task", "fps"), [("Go2-Velocity-Flat", 50.0), ("Reacher", 50.0), ("Hopper", 125 / 3)])
def test_a_video_lasts_as_long_as_what_it_shows(task: str, fps: float, tmp_path: Path):
    import cv2

    frames = record(playback(task), tmp_path / "a.mp4", seconds=0.24, size=(160, 120))
    video = cv2.VideoCapture(str(tmp_path / "a.mp4"))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(fps, rel=1e-3)
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == frames == round(0.24 * fps)
    good, picture = video.read()
    assert good
    assert picture.shape == (120, 160, 3)
    assert np.ptp(picture) > 50  # not one colour


def test_a_video_into_nowhere_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"an \.mp4 file, not a\.avi"):
        record(playback("CartPole-Balance"), tmp_path / "a.avi", seconds=0.1)
    if why_unavailable() is None:
        with pytest.raises(UserError, match="cannot write a video into"):
            record(playback("CartPole-Balance"), tmp_path / "none" / "a.mp4", seconds=0.1)
