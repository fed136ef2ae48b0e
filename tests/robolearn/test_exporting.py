"""The contract is what the environment does, and a file that is not the task's is refused by name of the difference."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import robolearn
from deploy import contract as deploy
from deploy import exporter
from deploy.contract import Contract
from deploy.errors import ContractError
from deploy.golden import verify
from deploy.observation import ObservationBuilder
from deploy.robot_io import RobotProfile, RobotState
from deploy.runtime import Policy, read_contract
from robolearn import checkpoint
from robolearn.evaluation import evaluate
from robolearn.exporting import UNSTATED, check, contract_of, export, imu_mounting, record
from robolearn.loading import load, restore
from sim.errors import UserError
from sim.mujoco_cpu import MujocoSimulation
from sim.robot import Robot
from sim.scene import build
from tasks.env import Env
from tasks.interface import Interface, Quantity
from tasks.task import JointPositionTask, RobotTaskConfig
from tasks.velocity import Velocity, VelocityConfig

TASK = "Go2-Velocity-Flat"
SIZES = {"angular_velocity": 3, "gravity": 3, "joint_position": 12, "joint_velocity": 12, "last_action": 12,
         "command": 3}  # fmt: skip


@pytest.fixture
def contract(go2_onnx: Path) -> Contract:
    return read_contract(go2_onnx)


def provenance(task: str = TASK) -> deploy.Provenance:
    return deploy.Provenance(task=task, algorithm="ppo", seed=0, iteration=0, git_commit="", git_dirty=False,
                             config_sha256="", checkpoint_sha256="", versions={})  # fmt: skip


def test_the_contract_is_read_from_the_environment(contract: Contract):
    env = robolearn.make(TASK)
    task, terms = env.task, contract.observation.terms
    assert isinstance(task, Velocity)
    assert {term.name: term.dim for term in terms} == SIZES == env.observation_terms["policy"]
    assert [term.name for term in terms] == list(SIZES)
    assert {term.name: term.noise_train for term in terms if term.noise_train} == env.cfg.noise
    assert contract.action.joints == task.description.joints
    assert contract.action.scale == (task.action_scale,) * 12
    assert contract.action.offset == task.description.default_position
    assert contract.action.clip_raw == ((-1.0, 1.0),) * 12
    assert (contract.timing.control_dt, contract.timing.physics_dt, contract.timing.decimation) == (0.02, 0.005, 4)
    assert contract.robot.base_frame == "base"
    assert contract.robot.imu_frame == "imu"
    assert {joint.kp for joint in contract.robot.joints} == set(task.description.kp)
    model = env.sim.model
    for joint in contract.robot.joints:
        described = model.joint(joint.name)
        assert (joint.lower, joint.upper) == tuple(described.range)
        assert joint.torque_limit == model.jnt_actfrcrange[described.id, 1]
        assert joint.armature == described.armature[0]
        assert joint.friction == described.frictionloss[0]
    (command,) = contract.commands
    assert command.ranges == (env.cfg.command.x, env.cfg.command.y, env.cfg.command.yaw)
    assert contract.training.randomisation["body_mass.base"] == env.cfg.base_mass
    assert contract.training.randomisation["push"] == (-env.cfg.push_velocity, env.cfg.push_velocity)


def test_the_contract_says_where_the_policy_comes_from(go2_run: Path, contract: Contract):
    file = checkpoint.files(go2_run / "checkpoints")[-1]
    about = json.loads((go2_run / "environment.json").read_text())
    said = contract.provenance
    assert said.checkpoint_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert said.config_sha256 == hashlib.sha256((go2_run / "config.yaml").read_bytes()).hexdigest()
    assert (said.task, said.algorithm, said.seed, said.iteration) == (TASK, "ppo", 0, 2)
    assert said.versions == about["versions"]
    assert said.git_commit == (about["git"] or {}).get("commit", "")
    normalizer = restore(go2_run).policy.normalizer
    assert contract.normaliser.count == 2 * 24 * 16
    deviation = (normalizer.var + normalizer.epsilon).sqrt()
    assert contract.normaliser.mean == tuple(normalizer.mean.float().tolist())
    assert contract.normaliser.std == pytest.approx(deviation.tolist(), rel=1e-6)


def test_a_controller_builds_the_observation_that_the_environment_does(contract: Contract):
    env = robolearn.make(TASK, noise=dict.fromkeys(VelocityConfig().noise, 0.0))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        obs = env.step(torch.rand(1, 12, generator=generator) * 2 - 1)[0]["policy"]
    task, state = env.task, RobotState.empty(12)
    assert isinstance(task, Velocity)
    robot = task.robot
    motors = contract.action.joints[::-1]  # a robot whose motors are in another order
    state.joint_position[:] = robot.joint_position[0].flip(0)
    state.joint_velocity[:] = robot.joint_velocity[0].flip(0)
    state.imu_quaternion[:] = robot.base_quaternion[0]  # the IMU's axes are the base's
    state.imu_angular_velocity[:] = robot.angular_velocity[0]
    builder = ObservationBuilder(contract, RobotProfile("go2", motors, "imu"))
    built = builder.build(state, task.command[0].numpy(), task.last_action[0].numpy())
    # Equal but for the order of additions in a rotation of a unit vector, in float64, rounded to float32.
    np.testing.assert_allclose(built, obs, rtol=0, atol=np.finfo(np.float32).eps * float(obs.abs().max()))
    assert float(obs.abs().max()) > 0.1


def test_the_targets_in_the_file_are_the_controls_of_the_environment(go2_onnx: Path):
    env, policy = robolearn.make(TASK), Policy(go2_onnx)
    obs = env.reset()[0]["policy"] * 3  # far enough out for some actions to be clipped
    action, target = policy.act(obs.numpy())
    env.step(torch.from_numpy(action))
    np.testing.assert_allclose(target[0], env.sim.ctrl[0], rtol=1e-6)


def test_the_golden_replay_holds_a_reset_another_command_and_noise(go2_onnx: Path):
    assert verify(go2_onnx).steps == 256
    rows = np.load(go2_onnx.with_suffix(".golden.npz"))["observation"]
    starts = np.cumsum([0, *SIZES.values()])
    column = {name: rows[:, starts[i] : starts[i + 1]] for i, name in enumerate(SIZES)}
    fresh = np.flatnonzero((column["last_action"] == 0).all(1))
    assert {0, 128} <= set(fresh)
    assert not np.array_equal(column["command"][127], column["command"][128])
    assert np.abs(np.linalg.norm(column["gravity"], axis=1) - 1).max() > 1e-3  # noise of 0.05 on a unit vector
    # Consecutive: between the resets the action that was taken is the next observation's last action.
    action = np.load(go2_onnx.with_suffix(".golden.npz"))["action"]
    # The replay's were computed as a batch, which adds up in another order: float32 sums of up to 256 terms.
    np.testing.assert_allclose(np.clip(action[:127], -1, 1), column["last_action"][1:128], atol=256 * 2.0**-24)


def test_nothing_is_written_when_the_policy_cannot_be_verified(go2_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(go2_run, run)
    file = checkpoint.files(run / "checkpoints")[-1]
    payload = checkpoint.load(file)
    payload["algorithm"]["policy"]["network.0.weight"][0, 0] = torch.nan
    checkpoint.save(file, payload)
    with pytest.raises((ContractError, UserError), match="not finite"):
        export(run)
    assert not list(run.glob("policy*"))


def test_a_replay_needs_its_steps(go2_run: Path, tmp_path: Path):
    with pytest.raises(UserError, match="at least 200 steps of simulation, not 199"):
        export(go2_run, tmp_path / "policy.onnx", steps=199)
    with pytest.raises(ContractError, match=r"named something\.onnx"):
        export(go2_run, tmp_path / "policy.pt")
    assert not list(tmp_path.iterdir())


def test_the_evaluation_of_the_run_goes_into_the_contract(go2_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(go2_run, run)
    (run / "eval.json").write_text(json.dumps({"return": 12.5, "fell": 0, "policy": "x", "changes": {}, "bad": None}))
    contract = read_contract(export(run))
    assert contract.training.evaluation == {"return": 12.5, "fell": 0.0}
    assert read_contract(run / "policy.onnx").provenance.checkpoint_sha256 == contract.provenance.checkpoint_sha256
    (run / "eval.json").write_text("{")
    with pytest.raises(UserError, match=r"eval\.json"):
        export(run)


def test_only_the_file_and_the_task_are_needed_to_evaluate(go2_run: Path, go2_onnx: Path, tmp_path: Path):
    alone = tmp_path / "walk.onnx"
    shutil.copy(go2_onnx, alone)
    policy, ours = load(alone), load(go2_run)
    assert policy.contract is not None
    results = []
    for act in (policy.act, ours.act):
        env = robolearn.make(policy.task, num_envs=8, seed=3, episode_s=1.0)
        check(policy.contract, env)
        results.append(evaluate(act, env, 8))
    # Actions differ by 1e-8 and a second is too short for that to grow to a thousandth.
    assert results[0] == pytest.approx(results[1], rel=1e-3, abs=1e-6)


Mutation = Callable[[Contract], Contract]


def swap(values: tuple) -> tuple:
    return (values[1], values[0], *values[2:])


def with_action(**fields: Any) -> Mutation:
    return lambda c: replace(c, action=replace(c.action, **{n: f(getattr(c.action, n)) for n, f in fields.items()}))


def with_joints(change: Callable[[deploy.Joint], deploy.Joint]) -> Mutation:
    return lambda c: replace(c, robot=replace(c.robot, joints=tuple(map(change, c.robot.joints))))


def with_terms(change: Callable[[tuple[deploy.Term, ...]], tuple[deploy.Term, ...]]) -> Mutation:
    return lambda c: replace(c, observation=replace(c.observation, terms=change(c.observation.terms)))


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "two joints swapped": (with_action(joints=swap), "action joints are in another order .*'FR_thigh_joint'"),
    "quaternion order": (
        lambda c: replace(c, observation=replace(c.observation, quaternion_order="xyzw")),
        "quaternion_order is 'xyzw' in the file and 'wxyz' in the task",
    ),
    "no normaliser": (
        lambda c: replace(c, normaliser=deploy.Normaliser(location="none")),
        "normaliser: location is 'none' in the file and 'in_graph'",
    ),
    "scale doubled": (
        with_action(scale=lambda v: tuple(2 * s for s in v)),
        "action scale of 'FR_hip_joint' is 2 in the file and 1 in the task",
    ),
    "offset": (with_action(offset=swap), "action offset of 'FR_hip_joint' is 0.9 in the file and 0 in the task"),
    "clip": (with_action(clip_raw=lambda v: None), "clip_raw is not set in the file"),
    "control period": (
        lambda c: replace(c, timing=replace(c.timing, control_dt=0.01, decimation=2)),
        "timing: control_dt is 0.01 in the file and 0.02 in the task",
    ),
    "gains": (
        with_joints(lambda j: replace(j, kp=j.kp + 5)),
        "joint 'RL_calf_joint': kp is 45 in the file and 40 in the task",
    ),
    "default pose": (with_joints(lambda j: replace(j, default_pos=j.default_pos + 0.1)), "default_pos is 0.1"),
    "terms reordered": (with_terms(swap), "observation terms are in another order .*'gravity'.*'angular_velocity'"),
    "a term more": (
        with_terms(lambda t: (*t, replace(t[0], name="linear_velocity", source="linear_velocity"))),
        "observation terms: only the file has linear_velocity",
    ),
    "joints within a term": (
        with_terms(lambda t: (*t[:2], replace(t[2], joints=swap(t[2].joints)), *t[3:])),
        "joints of observation term 'joint_position' are in another order",
    ),
    "history": (with_terms(lambda t: (replace(t[0], history=2), *t[1:])), "'angular_velocity': history is 2"),
    "IMU": (
        lambda c: replace(c, robot=replace(c.robot, imu_mounting=(0.0, 1.0, 0.0, 0.0))),
        "robot: imu_mounting is",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_contract_that_is_not_the_tasks_is_refused_by_name(contract: Contract, name: str):
    env = robolearn.make(TASK)
    check(contract, env)
    mutate, sentence = MUTATIONS[name]
    # Means and deviations of the normaliser have the old length where a mutation changes it.
    mutated = mutate(replace(contract, normaliser=deploy.Normaliser(location="in_graph")))
    with pytest.raises(ContractError, match=sentence) as caught:
        check(mutated, env)
    assert "\n" not in str(caught.value)


def test_every_difference_is_named(contract: Contract):
    mutated = with_joints(lambda j: replace(j, kd=1.0))(MUTATIONS["control period"][0](contract))
    with pytest.raises(ContractError, match=r"\(14 differences\).*FR_hip_joint': kd.*RL_calf_joint': kd.*control_dt"):
        check(mutated, robolearn.make(TASK))


def test_a_task_that_has_changed_since_is_refused(contract: Contract):
    with pytest.raises(ContractError, match=r"control_dt is 0\.02 in the file and 0\.04 in the task"):
        check(contract, robolearn.make(TASK, control_dt=0.04))

    class Soft(Velocity):
        def model(self) -> mujoco.MjModel:
            return build(self.description, timestep=self.config.physics_dt, kp=30.0)

    with pytest.raises(ContractError, match="'FR_hip_joint': kp is 40 in the file and 30 in the task"):
        check(contract, env_of(Soft(VelocityConfig())))

    class Reordered(Velocity):
        def observe(self) -> Any:
            groups = super().observe()
            return groups | {"policy": dict(reversed(groups["policy"].items()))}

    with pytest.raises(ContractError, match="observation terms are in another order"):
        check(contract, env_of(Reordered(VelocityConfig())))


def test_a_policy_exported_without_its_normaliser_is_refused(go2_run: Path, tmp_path: Path):
    trained = restore(go2_run)
    bare = trained.policy.network
    contract = contract_of(trained.env, provenance(), policy=bare)
    exporter.export(bare, contract, record(bare, trained.env, 200), tmp_path / "bare.onnx")
    with pytest.raises(ContractError, match="normaliser: location is 'none'"):
        check(read_contract(tmp_path / "bare.onnx"), trained.env)


@pytest.mark.parametrize("algorithm", ["sac", "of_another_version"])
def test_a_policy_that_needs_no_normaliser_is_not_refused_for_it(contract: Contract, algorithm: str):
    bare = replace(
        contract,
        provenance=replace(contract.provenance, algorithm=algorithm),
        normaliser=deploy.Normaliser(location="none"),
    )
    check(bare, robolearn.make(TASK))


def test_a_task_that_states_nothing_still_exports():
    env = robolearn.make("HalfCheetah")
    contract = contract_of(env, provenance("HalfCheetah"))
    assert {term.source for term in contract.observation.terms} == {UNSTATED}
    assert contract.robot.joints == ()
    assert contract.action.type == "actuator"
    low, high = env.single_action_space.low, env.single_action_space.high
    np.testing.assert_array_equal(contract.action.clip_raw, np.stack((low, high), 1))
    check(replace(contract, normaliser=deploy.Normaliser(location="in_graph")), env)


@pytest.mark.parametrize("task", ["CartPole-Swingup", "Pendulum-Swingup"])
def test_the_small_tasks_say_what_they_measure(task: str):
    contract = contract_of(robolearn.make(task), provenance(task))
    assert UNSTATED not in {term.source for term in contract.observation.terms}


def test_a_task_may_not_describe_a_term_that_it_lacks():
    class Mistaken(Velocity):
        def interface(self) -> Interface:
            return Interface(observation={"gravty": Quantity(source="projected_gravity")})

    with pytest.raises(UserError, match=r"unknown observation term 'gravty' in Mistaken.interface; .*'gravity'"):
        contract_of(env_of(Mistaken(VelocityConfig())), provenance())


ROBOT = """
<mujoco>
  <worldbody>
    <body name="trunk" pos="0 0 1" quat="0.9 0.1 0.2 0.3">
      <freejoint/>
      <geom size="0.1"/>
      <body name="mast" quat="0.8 0 0.6 0"><geom size="0.02"/>
        <body name="head" quat="0.6 0.8 0 0"><geom size="0.02"/>{neck}<site name="imu" quat="0.7 0.1 -0.7 0"/></body>
      </body>
      <body><joint name="a" axis="1 0 0" range="-1 1" limited="true"/><geom size="0.05" pos="0.2 0 0"/></body>
      <body><joint name="b" axis="0 1 0"/><geom size="0.05" pos="0 0.2 0"/></body>
    </body>
  </worldbody>
  <actuator>
    <position name="a" joint="a" kp="7" kv="0.5" ctrlrange="-0.25 0.5" ctrllimited="true"/>
    <position name="b" joint="b" kp="8" kv="0.5"/>
  </actuator>
  <sensor><gyro name="gyro" site="imu"/><framequat objtype="site" objname="imu"/></sensor>
</mujoco>
"""


def robot_file(folder: Path, neck: str = "") -> str:
    path = folder / "robot.xml"
    path.write_text(ROBOT.format(neck=neck))
    return str(path)


def env_of(task: Any) -> Env:
    return Env(task, MujocoSimulation(task.model(), 1))


def test_the_mounting_turns_what_the_gyroscope_measures_into_the_base_frame(tmp_path: Path):
    model = mujoco.MjModel.from_xml_path(robot_file(tmp_path))
    data, robot = mujoco.MjData(model), Robot.from_model("r", tmp_path / "robot.xml", model)
    data.qvel[3:6] = (0.3, -0.5, 0.7)  # a free joint's angular velocity is in the body's frame
    mujoco.mj_forward(model, data)
    mounting = imu_mounting(model, robot)
    assert mounting is not None
    turned = np.zeros(3)
    mujoco.mju_rotVecQuat(turned, data.sensor("gyro").data, np.array(mounting))
    np.testing.assert_allclose(turned, data.qvel[3:6], atol=1e-12)


def test_an_imu_that_moves_against_the_base_has_no_mounting(tmp_path: Path):
    path = robot_file(tmp_path, '<joint name="neck" axis="0 0 1"/>')
    model = mujoco.MjModel.from_xml_path(path)
    assert imu_mounting(model, Robot.from_model("r", path, model)) is None


class Hold(JointPositionTask[RobotTaskConfig]):
    Config = RobotTaskConfig

    def observe(self) -> Any:
        terms = {"joint_position": self.robot.joint_position}
        return {"policy": terms, "critic": terms}

    def rewards(self) -> Any:
        return {}


def test_targets_are_clipped_where_the_actuators_clip_them(tmp_path: Path):
    env = env_of(Hold(RobotTaskConfig(robot=robot_file(tmp_path))))
    action = contract_of(env, provenance()).action
    assert action.clip_target is not None
    assert action.clip_target[0] == (-0.25, 0.5)
    low, high = action.clip_target[1]
    assert low < action.offset[1] - action.scale[1]  # out of reach
    assert high > action.offset[1] + action.scale[1]
