"""From a run to a verified ONNX file: the contract as the environment states it, and the steps it is held to."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import mujoco
import numpy as np
import torch

from deploy import contract as deploy
from deploy import exporter
from deploy.contract import Contract
from deploy.differences import differences
from deploy.errors import ContractError
from deploy.golden import MINIMUM_STEPS
from robolearn import run as runs
from robolearn.algorithms.registry import algorithm_class
from robolearn.environments import source_of
from robolearn.loading import Trained, restore
from sim.errors import UserError, unknown
from sim.robot import Robot
from tasks.env import Env
from tasks.interface import Quantity
from tasks.task import RobotTask
from tasks.vector_env import VectorEnv

UNSTATED = "unstated"
"""The source of a term that its task says nothing about."""


def export(run: str | Path, output: str | Path | None = None, *, steps: int = 256) -> Path:
    """Write the policy of a run as one ONNX file with its contract inside, verified or not at all; return its path.

    The file is run over consecutive steps of one world of its task, noise on, with a second episode, and so another
    command, half way; they become the golden replay beside it.

    Args:
        run: a run directory or a checkpoint file.
        output: where to write; ``policy.onnx`` in the run directory if not given.
        steps: of simulation over which the file must equal torch; at least 200.

    Raises:
        UserError: there is no such run, it does not load, or there are too few steps.
        ContractError: the policy cannot be written, or the file does not do what torch does.
    """
    if steps < MINIMUM_STEPS:
        raise UserError(f"export needs at least {MINIMUM_STEPS} steps of simulation, not {steps}")
    trained = restore(run)
    path = trained.run.path / "policy.onnx" if output is None else Path(output)
    contract = contract_of(
        trained.env, provenance_of(trained), policy=trained.policy, evaluation=_evaluation(trained.run.path)
    )
    exporter.export(trained.policy, contract, record(trained.policy, trained.env, steps), path)
    return path


def check(contract: Contract, env: VectorEnv) -> None:
    """Refuse a policy whose contract is not the one that an environment would write.

    Raises:
        ContractError: they differ; names every difference.
    """
    ours = contract_of(env, contract.provenance)
    # The task knows nothing of the normaliser; a policy has one in its graph unless its algorithm leaves the choice.
    always = _always_normalises(contract.provenance.algorithm)
    ours = replace(ours, normaliser=deploy.Normaliser(location="in_graph") if always else contract.normaliser)
    if found := differences(contract, ours):
        raise ContractError(
            f"the policy was not made for this task as it stands ({len(found)} "
            f"difference{'s' if len(found) > 1 else ''}): {'; '.join(found)}"
        )


def _always_normalises(algorithm: str) -> bool:
    try:
        config = algorithm_class(algorithm).Config
    except UserError:  # of another version, or not installed where the file is used: nothing is known of it
        return False
    return "normalize_observation" not in {field.name for field in fields(config)}


def contract_of(
    env: VectorEnv,
    provenance: deploy.Provenance,
    *,
    policy: torch.nn.Module | None = None,
    evaluation: Mapping[str, float] | None = None,
) -> Contract:
    """Return the contract of a policy for an environment, as the environment itself states it.

    Args:
        env: what the policy was trained in, with any number of worlds.
        provenance: where the policy comes from.
        policy: the policy; without one, the contract says that nothing is normalised.
        evaluation: how it scored, by name.

    Raises:
        UserError: the task describes an observation term that it does not have.
    """
    interface, delay = env.interface(), env.action_delay_s
    return Contract(
        policy=deploy.PolicyInfo(),
        robot=_robot(env),
        timing=deploy.Timing(
            physics_dt=env.physics_dt,
            decimation=env.decimation,
            control_dt=env.decimation * env.physics_dt,
            action_delay_range_s=(delay, delay),
        ),
        action=_action(env),
        observation=deploy.Observation(terms=_terms(env)),
        normaliser=_normaliser(policy),
        commands=tuple(
            deploy.Command(name=c.name, components=c.components, units=c.units, ranges=c.ranges, default=c.default)
            for c in interface.commands
        ),
        safety=deploy.Safety(tilt_limit_rad=interface.tilt_limit),
        provenance=provenance,
        training=deploy.Training(randomisation=env.randomisation(), evaluation=dict(evaluation or {})),
    )


def provenance_of(trained: Trained) -> deploy.Provenance:
    """Return where the policy of a checkpoint comes from, as its run directory says."""
    config, run = trained.config, trained.run
    about = _read_json(run.environment) or runs.environment(config.seed, config.device)
    git = about.get("git") or {}
    return deploy.Provenance(
        task=config.task,
        environments=source_of(config.sim).name,
        algorithm=config.algo,
        seed=config.seed,
        iteration=trained.iteration,
        git_commit=git.get("commit", ""),
        git_dirty=git.get("dirty", False),
        config_sha256=_sha256(run.config),
        checkpoint_sha256=_sha256(trained.checkpoint),
        versions=about.get("versions", {}),
    )


def record(policy: torch.nn.Module, env: VectorEnv, steps: int) -> np.ndarray:
    """Return the observations `(steps, D)` float32 of consecutive steps of the first world under the mean action.

    The world is reset at the start and half way, and wherever an episode ends.
    """
    rows = []
    obs = env.obs_buf
    for step in range(steps):
        if step in (0, steps // 2):
            obs, _ = env.reset()
        rows.append(obs["policy"][0].cpu().numpy())
        with torch.no_grad():
            obs = env.step(policy(obs["policy"]))[0]
    return np.stack(rows)


def _terms(env: VectorEnv) -> tuple[deploy.Term, ...]:
    stated, sizes = env.interface().observation, env.observation_terms["policy"]
    for name in stated:
        if name not in sizes:
            raise unknown("observation term", name, sizes, f"{env.name}.interface")
    terms = []
    for name, size in sizes.items():
        quantity = stated.get(name, Quantity(source=UNSTATED))
        terms.append(
            deploy.Term(
                name=name,
                source=quantity.source,
                dim=size,
                scale=(1.0,) * size,
                offset=(0.0,) * size,
                unit=quantity.unit,
                frame=quantity.frame,
                joints=quantity.joints,
                noise_train=env.noise.get(name, 0.0),
                needs_estimator=quantity.needs_estimator,
            )
        )
    return tuple(terms)


def _action(env: VectorEnv) -> deploy.Action:
    term = env.action_term
    return deploy.Action(
        joints=term.names,
        type=cast(Literal["position", "actuator"], term.kind),
        scale=term.scale,
        offset=term.offset,
        clip_raw=tuple(zip(term.low, term.high, strict=True)),
        clip_target=_target_limits(env),
        last_action_definition="clipped",
    )


def _target_limits(env: VectorEnv) -> tuple[deploy.Range, ...] | None:
    """Return the range that MuJoCo clips each joint target to; None if it clips none."""
    term = env.action_term
    if term.kind != "position" or not isinstance(env, Env) or not isinstance(env.task, RobotTask):
        return None
    task, model = env.task, env.sim.model
    limited = model.actuator_ctrllimited[task.robot.actuators].astype(bool)
    if not limited.any():
        return None
    low, high, scale, offset = (np.array(v) for v in (term.low, term.high, term.scale, term.offset))
    ends = np.sort(np.stack((offset + scale * low, offset + scale * high), 1), axis=1)
    # A joint without limits among limited ones gets such as its targets never reach.
    unreached = ends + np.array((-1.0, 1.0))
    ranges = np.where(limited[:, None], model.actuator_ctrlrange[task.robot.actuators], unreached)
    return tuple((float(a), float(b)) for a, b in ranges)


def _robot(env: VectorEnv) -> deploy.Robot:
    if not isinstance(env, Env) or not isinstance(env.task, RobotTask):
        return deploy.Robot(name=env.name)
    robot, model = env.task.description, env.sim.model
    # The gains are those of the model that is simulated, which a task may have built with others than its file's.
    live = Robot.from_model(robot.name, robot.path, model)
    mounting = imu_mounting(model, robot)
    joints = []
    for name, default in zip(robot.joints, robot.default_position, strict=True):
        joint, place = model.joint(name), live.joints.index(name)
        dof, limited = int(joint.dofadr[0]), bool(joint.limited[0])
        joints.append(
            deploy.Joint(
                name=name,
                default_pos=default,
                kp=live.kp[place],
                kd=live.kd[place],
                lower=float(joint.range[0]) if limited else None,
                upper=float(joint.range[1]) if limited else None,
                vel_limit=_finite(live.velocity_limit[place]),
                torque_limit=_finite(live.effort[place]),
                armature=float(model.dof_armature[dof]),
                friction=float(model.dof_frictionloss[dof]),
                unit="m" if int(joint.type[0]) == int(mujoco.mjtJoint.mjJNT_SLIDE) else "rad",
            )
        )
    return deploy.Robot(
        name=robot.name,
        model_sha256=_sha256(Path(robot.path)),
        base_frame=robot.base,
        imu_frame=robot.imu_site or "" if mounting else "",
        imu_mounting=mounting or (1.0, 0.0, 0.0, 0.0),
        joints=tuple(joints),
    )


def imu_mounting(model: mujoco.MjModel, robot: Robot) -> tuple[float, float, float, float] | None:
    """Return the unit quaternion (w, x, y, z) that turns vectors of the IMU's frame into the base frame.

    None if the robot has no IMU, or one that moves against the base.
    """
    if robot.imu_site is None:
        return None
    site, base = model.site(robot.imu_site), model.body(robot.base).id
    body, rotation = int(site.bodyid[0]), np.array(site.quat)
    while body != base:
        if body == 0 or model.body_jntnum[body]:
            return None
        mujoco.mju_mulQuat(rotation, model.body_quat[body], rotation.copy())
        body = int(model.body_parentid[body])
    w, x, y, z = rotation.tolist()
    return w, x, y, z


def _normaliser(policy: torch.nn.Module | None) -> deploy.Normaliser:
    normalizer: Any = getattr(policy, "normalizer", None)
    if normalizer is None:
        return deploy.Normaliser(location="none")
    return deploy.Normaliser(
        location="in_graph",
        count=int(normalizer.count),
        mean=tuple(normalizer.shift.tolist()),
        std=tuple((1 / normalizer.scale).tolist()),
    )


def _evaluation(run: Path) -> dict[str, float]:
    """Return the numbers of the run's ``eval.json``; nothing where it was not evaluated."""
    numbers = (_read_json(run / "eval.json") or {}).items()
    return {name: float(v) for name, v in numbers if type(v) in (int, float) and math.isfinite(v)}


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected an object")
    return data


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
