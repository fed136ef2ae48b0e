"""The velocity task: feet, commands, curriculum, and its mirror symmetry against the physics."""

import itertools
from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch

from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from tasks.env import Env
from tasks.registry import make_task
from tasks.velocity import Velocity, VelocityRange

Make = Callable[..., Any]
NAME = "Go2-Velocity-Flat"
CALM: dict[str, Any] = {"push_velocity": 0.0, "friction": (1.0, 1.0), "base_mass": (1.0, 1.0), "curriculum": False}
QUIET: dict[str, Any] = CALM | {
    "noise": dict.fromkeys(["angular_velocity", "gravity", "joint_position", "joint_velocity"], 0.0)
}


def stand(env: Env, contact: torch.Tensor | None = None) -> Velocity:
    """Put every world in the default pose at rest; feet then press on the ground as ``contact`` (N, F) says."""
    task, sim = env.task, env.sim
    assert isinstance(task, Velocity)
    sim.qpos[:] = torch.from_numpy(sim.model.key_qpos[0])
    sim.qvel[:] = 0
    sim.forward()
    if contact is not None:
        task.robot.__dict__["foot_contact"] = contact
    return task


@pytest.mark.parametrize("contact", list(itertools.product([False, True], repeat=4)))
def test_gait_is_one_diagonal_when_moving_and_all_feet_when_standing(env_of: Make, contact: tuple[bool, ...]):
    env = env_of(NAME, worlds=2, **CALM)
    assert env.task.description.feet == ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
    task = stand(env, torch.tensor([contact, contact]))
    task.command[:] = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    moving, standing = task.rewards()["gait"].tolist()
    diagonal = contact in [(True, False, False, True), (False, True, True, False)]  # FR with RL, FL with RR
    assert (moving, standing) == (float(diagonal), float(all(contact)))


def test_air_time_counts_and_is_paid_at_landing(env_of: Make):
    env = env_of(NAME, worlds=1, **CALM)
    task = stand(env, torch.ones(1, 4, dtype=torch.bool))
    task.command[:] = torch.tensor([0.5, 0.0, 0.0])
    task.command_timer[:] = 1e9
    dt, air = task.config.control_dt, 20  # the first foot is 20 steps in the air, the second one step, the others none
    task.advance()
    assert not task.air_time.any()
    paid = []
    for step in range(air + 2):
        contact = torch.tensor([[step >= air, step >= 1, True, True]])
        task.robot.__dict__["foot_contact"] = contact
        task.advance()
        paid.append(float(task.rewards()["air_time"]))
        times = task.air_time[0].tolist()
        assert times[0] == pytest.approx(0.0 if step >= air else dt * (step + 1))
        assert times[1] == pytest.approx(dt if step == 0 else 0.0)
        assert times[2:] == [0.0, 0.0]
    # A foot that lands had been up since the last step at which it stood: the steps in the air and the one it lands in.
    assert paid[1] == pytest.approx(2 * dt - task.stance_s)
    assert paid[air] == pytest.approx((air + 1) * dt - task.stance_s)
    assert all(value == 0.0 for step, value in enumerate(paid) if step not in (1, air))


def test_real_feet_touch_the_ground_and_leave_it(env_of: Make):
    env = env_of(NAME, worlds=2, **QUIET)
    stand(env)
    env.sim.qpos[1, 2] += 0.5
    for _ in range(5):
        env.step(torch.zeros(2, 12))
    assert env.task.robot.foot_contact.all(1).tolist() == [True, False]
    assert env.task.air_time[0].tolist() == [0.0] * 4
    assert env.task.air_time[1].tolist() == pytest.approx([0.1] * 4)


def test_tracking_what_is_commanded_is_worth_all(env_of: Make):
    env = env_of(NAME, worlds=2, **CALM)
    task = stand(env)
    task.command[:] = torch.tensor([0.6, -0.3, 0.5])
    # The first robot faces along y: its own forward velocity is the world's y, its left the world's -x.
    env.sim.qpos[:, 3:7] = torch.tensor([2**-0.5, 0.0, 0.0, 2**-0.5], dtype=torch.float64)
    env.sim.qvel[0, :3] = torch.tensor([0.3, 0.6, 0.0])
    env.sim.qvel[0, 5] = 0.5
    env.sim.forward()
    rewards, metrics = task.rewards(), task.metrics()
    assert rewards["track_velocity"].tolist()[0] == pytest.approx(1.0)
    assert rewards["track_yaw"].tolist()[0] == pytest.approx(1.0)
    assert rewards["track_velocity"][1] < 0.1
    assert metrics["velocity_error"].tolist() == pytest.approx([0.0, 0.45**0.5], abs=1e-7)
    assert metrics["yaw_rate_error"].tolist() == pytest.approx([0.0, 0.5])


def test_falling_is_tilting_or_lying(env_of: Make):
    env = env_of(NAME, worlds=5, **CALM)
    task = stand(env)
    for world, tilt in enumerate([0.0, 1.0, 1.1, -1.1]):  # rad; 60 degrees are 1.047
        quaternion = torch.zeros(4, dtype=torch.float64)
        mujoco.mju_axisAngle2Quat(quaternion.numpy(), [0.6, 0.8, 0.0], tilt)
        env.sim.qpos[world, 3:7] = quaternion
    env.sim.qpos[4, 2] = 0.1
    env.sim.forward()
    assert task.terminations()["fell"].tolist() == [False, False, True, True, True]


# Commands


def test_commands_are_drawn_in_their_ranges(env_of: Make):
    command = VelocityRange(x=(-0.4, 1.2), y=(0.1, 0.3), yaw=(-2.0, -1.0), resample_s=(1.0, 2.0), standing=0.2)
    env = env_of(NAME, worlds=64, command=command, **CALM)
    drawn = []
    for _ in range(50):
        env.task._resample(torch.arange(64))
        drawn.append(env.task.command.clone())
    drawn = torch.cat(drawn)
    still = (drawn == 0).all(1)
    # 3,200 draws: the share is binomial with a deviation of 0.7 %, and a uniform extreme is within 1 % of its range.
    assert float(still.double().mean()) == pytest.approx(0.2, abs=0.035)
    for column, (low, high) in enumerate((command.x, command.y, command.yaw)):
        values = drawn[~still, column]
        assert low <= float(values.min()) < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < float(values.max()) <= high
    assert float(env.task.command_timer.min()) >= 1.0
    assert float(env.task.command_timer.max()) <= 2.0


def test_a_command_lasts_until_its_time_is_up(env_of: Make):
    env = env_of(NAME, worlds=3, **CALM)
    task = stand(env)
    task.command_timer[:] = torch.tensor([0.03, 0.05, 9.0])
    first = task.command.clone()
    changed = []
    for _ in range(3):
        task.renew()
        changed.append((task.command != first).any(1).tolist())
    assert changed == [[False] * 3, [True, False, False], [True, True, False]]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"x": (1.0, -1.0)}, "command.x must be an ordered range, not (1.0, -1.0)"),
        ({"standing": 1.5}, "command.standing must be a share between 0 and 1, not 1.5"),
        ({"resample_s": (0.0, 1.0)}, "command.resample_s must be positive, not (0.0, 1.0)"),
        ({"yaw": (0.0, float("nan"))}, "command.yaw must be an ordered range, not (0.0, nan)"),
    ],
)
def test_command_ranges_are_checked(fields: dict, text: str):
    with pytest.raises(UserError) as error:
        VelocityRange(**fields)
    assert str(error.value) == text


# Curriculum and play


def test_commands_widen_only_while_tracking_is_good(env_of: Make):
    env = env_of(NAME, worlds=64, **CALM | {"curriculum": True})
    task = env.task
    steps = task.config.episode_s / task.config.control_dt
    full = task.config.weights["track_velocity"] * steps
    start = float(task.width)
    assert start < 1.0
    task._resample(torch.arange(64))
    assert float(task.command[:, 0].abs().max()) <= start * 1.0
    task.progress({"reward/track_velocity": 0.5 * full, "episode/count": 10.0})
    assert float(task.width) == start
    widths = [start]
    for _ in range(2000):
        task.progress({"reward/track_velocity": 0.9 * full, "episode/count": 10.0})
        widths.append(float(task.width))
    assert all(a <= b for a, b in itertools.pairwise(widths))
    assert widths[1] > start
    assert widths[-1] == 1.0
    assert task.log() == {"command_width": 1.0}


def test_without_a_curriculum_commands_are_full_from_the_start(env_of: Make):
    env = env_of(NAME, worlds=1, **CALM)
    full = env.task.config.weights["track_velocity"] * 1000
    assert float(env.task.width) == 1.0
    env.task.progress({"reward/track_velocity": full, "episode/count": 10.0})
    assert float(env.task.width) == 1.0


def test_the_play_config_strips_noise_pushes_and_randomisation():
    task = make_task(NAME)
    config = task.play_config()
    assert not any(config.noise.values())
    assert config.noise.keys() == task.config.noise.keys()
    assert (config.push_velocity, config.friction, config.base_mass) == (0.0, (1.0, 1.0), (1.0, 1.0))
    assert any(task.config.noise.values())  # the training config stays as it was
    assert task.config.push_velocity > 0
    play = Velocity(config)
    env = Env(play, MujocoSimulation(play.model(), 3, threads=1))
    obs, *_ = env.step(torch.zeros(3, 12))
    assert torch.equal(obs["policy"], obs["critic"][:, : obs["policy"].shape[1]])
    masses = env.sim.expand("body_mass")
    assert torch.equal(masses, torch.from_numpy(env.sim.model.body_mass).expand(3, -1))
    assert [event.when for event in play.randomise()] == ["start", "start"]


# Symmetry


def test_mirrors_fit_the_observations_and_undo_themselves(env_of: Make):
    env = env_of(NAME, worlds=8, **QUIET)
    groups, action = env.task.mirrors()
    for group, mirror in groups.items():
        values = torch.randn(8, env.single_observation_space[group].shape[0])
        assert torch.equal(mirror(mirror(values)), values)
    values = torch.randn(8, 12)
    assert torch.equal(action(action(values)), values)


def test_physics_is_symmetric_under_the_mirrors():
    """A mirrored state under the mirrored action steps to the mirrored next state, and so do its observations."""
    task: Any = make_task(NAME, **QUIET)
    model = task.model()
    # The trunk's published inertia is not quite symmetric (its axes are off by 0.1 degrees): here the robot shall be.
    base = model.body("base").id
    model.body_iquat[base] = [0.5, 0.5, 0.5, 0.5]
    mujoco.mj_setConst(model, mujoco.MjData(model))
    env = Env(task, MujocoSimulation(model, 2, threads=1))
    groups, action_mirror = task.mirrors()
    joints = task.robot.joint_mirror()
    generator, touched = torch.Generator().manual_seed(0), False
    for _ in range(20):
        stand(env)
        qpos, qvel = env.sim.qpos, env.sim.qvel
        qpos[0] += 0.1 * torch.randn(19, generator=generator, dtype=torch.float64)
        qpos[0, 2] = 0.3
        qpos[0, 3:7] /= qpos[0, 3:7].norm()
        qvel[0] = 0.5 * torch.randn(18, generator=generator, dtype=torch.float64)
        qpos[1, :7] = qpos[0, :7] * torch.tensor([1, -1, 1, 1, -1, 1, -1])
        qvel[1, :6] = qvel[0, :6] * torch.tensor([1, -1, 1, -1, 1, -1])
        qpos[1, task.robot.position_index] = joints(task.robot.joint_position)[0]
        env.sim.version += 1
        qvel[1, task.robot.velocity_index] = joints(task.robot.joint_velocity)[0]
        task.command[0] = torch.randn(3, generator=generator)
        task.command[1] = task.command[0] * torch.tensor([1, -1, -1])
        task.command_timer[:] = 1e9
        task.air_time[:] = 0
        env.sim.forward()
        action = torch.rand(1, 12, generator=generator) * 2 - 1
        for _ in range(5):
            _, reward, terminated, _, extras = env.step(torch.cat((action, action_mirror(action))))
            for group, mirror in groups.items():
                image = mirror(extras["final_obs"][group][:1])
                # The legs are summed in another order in float64; unmirrored the two differ by up to 10.
                torch.testing.assert_close(extras["final_obs"][group][1:], image, rtol=1e-6, atol=1e-6)
            assert float(reward[0]) == pytest.approx(float(reward[1]), rel=1e-6)
            touched |= bool(task.robot.foot_contact.any())
            if terminated.any():
                break
    assert touched


@pytest.mark.parametrize(("robot", "feet"), [("panda", 0), ("g1", 2)])
def test_a_robot_without_four_feet_is_refused(robot: str, feet: int):
    with pytest.raises(UserError, match=f"four feet.*'{robot}' has \\d") as caught:
        make_task(NAME, robot=robot)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"has {feet}")
