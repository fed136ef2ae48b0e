"""The contract document: lossless, strict, and compared by what changes behaviour."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from deploy.contract import Action, Contract, Robot, Timing, from_json
from deploy.describe import describe
from deploy.differences import differences
from deploy.errors import ContractError


def test_round_trip_is_lossless_to_the_bit(contract):
    awkward = replace(
        contract,
        timing=replace(contract.timing, obs_delay_range_s=(-0.0, np.nextafter(0.02, 1.0))),
        training=replace(contract.training, randomisation={"mass é\n": (1e-310, 1.7976931348623157e308)}),
    )
    text = awkward.to_json()
    read = from_json(text)
    assert read == awkward
    assert read.to_json() == text
    assert read.sha256 == awkward.sha256
    assert np.signbit(read.timing.obs_delay_range_s[0])
    assert read.timing.obs_delay_range_s[1].hex() == float(np.nextafter(0.02, 1.0)).hex()


def test_equal_contracts_have_one_text(contract):
    """Whole numbers, numpy numbers and lists in place of floats and tuples give the same document."""
    loose = replace(
        contract,
        action=replace(contract.action, scale=[0.25, np.float64(0.25), 0.5, 0.1], clip_raw=[[-1, np.int64(1)]] * 4),
    )
    assert loose.to_json() == contract.to_json()


def test_a_task_without_a_robot_has_a_contract(contract):
    gym = replace(
        contract,
        robot=Robot(name=""),
        action=Action(joints=("slider",), type="actuator", scale=(1.0,), offset=(0.0,)),
        observation=replace(
            contract.observation, terms=(replace(contract.observation.terms[0], source="observation"),)
        ),
        normaliser=replace(contract.normaliser, mean=None, std=None),
        commands=(),
    )
    assert from_json(gym.to_json()) == gym
    assert differences(gym, gym) == []
    assert "slider" in describe(gym)


def _edited(contract: Contract, edit) -> str:
    data = json.loads(contract.to_json())
    edit(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d["timing"].pop("decimation"), "timing.decimation"),
        (lambda d: d["observation"]["terms"][2].pop("unit"), "observation.terms[2].unit"),
        (lambda d: d["robot"]["joints"][1].update(colour="red"), "robot.joints[1].colour"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["action"]["scale"].__setitem__(3, "0.1"), "action.scale[3]"),
        (lambda d: d["action"]["scale"].__setitem__(3, True), "action.scale[3]"),
        (lambda d: d["action"]["clip_raw"][0].append(0.0), "action.clip_raw[0]"),
        (lambda d: d["timing"].update(decimation=4.0), "timing.decimation"),
        (lambda d: d["safety"].update(fallback="pray"), "safety.fallback"),
        (lambda d: d["provenance"]["versions"].update(torch=2), "provenance.versions.torch"),
        (lambda d: d["provenance"].update(git_dirty=0), "provenance.git_dirty"),
        (lambda d: d.update(robot=[]), "robot"),
        (lambda d: d["robot"]["joints"][0].update(kp=float("nan")), "NaN"),
        (lambda d: d["robot"]["joints"][0].update(kp=10**400), "robot.joints[0].kp"),
        (lambda d: d["action"]["joints"].__setitem__(0, "FR"), "FR"),
        (lambda d: d["action"]["joints"].__setitem__(0, "XX"), "XX"),
        (lambda d: d["action"]["scale"].pop(), "action.scale"),
        (lambda d: d["observation"]["terms"].append(d["observation"]["terms"][0]), "angular_velocity"),
        (lambda d: d["observation"]["terms"][3]["joints"].__setitem__(0, "XX"), "XX"),
        (lambda d: d["timing"].update(control_dt=0.01), "control_dt"),
        (lambda d: d["normaliser"]["mean"].pop(), "normaliser.mean"),
        (lambda d: d.update(schema_version="2.0"), "2.0"),
    ],
)
def test_a_wrong_document_is_refused_by_name_in_one_line(contract, edit, named):
    with pytest.raises(ContractError) as error:
        from_json(_edited(contract, edit))
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"a":1,"a":2}', '"text"', "9" * 5000])
def test_what_is_no_contract_is_refused(text):
    with pytest.raises(ContractError):
        from_json(text)


def test_numbers_that_are_not_finite_are_refused_where_they_are_made():
    with pytest.raises(ContractError, match=r"Timing\.physics_dt"):
        Timing(physics_dt=float("inf"), decimation=1, control_dt=0.02)


def _term(contract: Contract, i: int, **changes) -> Contract:
    terms = list(contract.observation.terms)
    terms[i] = replace(terms[i], **changes)
    return replace(contract, observation=replace(contract.observation, terms=tuple(terms)))


def _swapped(values: tuple, i: int = 0, j: int = 1) -> tuple:
    items = list(values)
    items[i], items[j] = items[j], items[i]
    return tuple(items)


def _action(contract: Contract, **changes) -> Contract:
    return replace(contract, action=replace(contract.action, **changes))


def _joint(contract: Contract, i: int, **changes) -> Contract:
    joints = list(contract.robot.joints)
    joints[i] = replace(joints[i], **changes)
    return replace(contract, robot=replace(contract.robot, joints=tuple(joints)))


def _observation(contract: Contract, **changes) -> Contract:
    return replace(contract, observation=replace(contract.observation, **changes))


MUTATIONS = {
    "two joints of the action": (lambda c: _action(c, joints=_swapped(c.action.joints)), ["action joints", "FL", "FR"]),
    "two joints of a term": (
        lambda c: _term(c, 2, joints=_swapped(c.observation.terms[2].joints)),
        ["joint_position", "FL", "FR"],
    ),
    "quaternion order": (lambda c: _observation(c, quaternion_order="xyzw"), ["quaternion_order", "wxyz", "xyzw"]),
    "no normaliser": (
        lambda c: replace(c, normaliser=replace(c.normaliser, location="none")),
        ["normaliser", "in_graph", "none"],
    ),
    "action scale times two": (
        lambda c: _action(c, scale=tuple(2 * s for s in c.action.scale)),
        ["action scale", "FL", "0.25", "0.5"],
    ),
    "observation scale times two": (lambda c: _term(c, 0, scale=(2.0,) * 3), ["angular_velocity", "scale", "2"]),
    "order of terms": (
        lambda c: _observation(c, terms=_swapped(c.observation.terms, 2, 3)),
        ["order", "joint_position", "joint_velocity"],
    ),
    "a term less": (
        lambda c: replace(
            c,
            observation=replace(c.observation, terms=c.observation.terms[:-1]),
            normaliser=replace(c.normaliser, mean=None, std=None),
        ),
        ["only the task has command"],
    ),
    "control period": (
        lambda c: replace(c, timing=Timing(physics_dt=0.005, decimation=2, control_dt=0.01)),
        ["control_dt", "0.01", "0.02"],
    ),
    "a gain": (lambda c: _joint(c, 1, kp=50.0), ["FR", "kp", "50", "26"]),
    "a default position": (lambda c: _joint(c, 2, default_pos=0.0), ["RL", "default_pos"]),
    "an offset": (lambda c: _action(c, offset=(0.0, *c.action.offset[1:])), ["action offset", "FL"]),
    "a clip": (lambda c: _action(c, clip_raw=None), ["clip_raw", "not set"]),
    "the action type": (lambda c: _action(c, type="torque"), ["type", "torque", "position"]),
    "a unit": (lambda c: _term(c, 0, unit="deg/s"), ["angular_velocity", "unit", "deg/s"]),
    "a frame": (lambda c: _term(c, 0, frame="world"), ["angular_velocity", "frame", "world"]),
    "a history": (
        lambda c: _term(replace(c, normaliser=replace(c.normaliser, mean=None, std=None)), 0, history=3),
        ["angular_velocity", "history", "3"],
    ),
    "the IMU's mounting": (
        lambda c: replace(c, robot=replace(c.robot, imu_mounting=(0.0, 1.0, 0.0, 0.0))),
        ["imu_mounting"],
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_reported_by_name(contract, name):
    mutate, words = MUTATIONS[name]
    found = differences(mutate(contract), contract)
    assert any(all(word in sentence for word in words) for sentence in found), found
    assert all("\n" not in sentence for sentence in found)


def test_what_does_not_change_behaviour_is_no_difference(contract):
    nearly = _joint(contract, 0, default_pos=float(np.float32(0.1)))
    other = replace(
        nearly,
        provenance=replace(contract.provenance, seed=1, git_commit="f"),
        training=replace(contract.training, evaluation={}),
        normaliser=replace(contract.normaliser, count=1, mean=None, std=None),
        commands=(replace(contract.commands[0], ranges=((-2.0, 2.0),) * 3),),
    )
    assert differences(other, contract) == []


def test_the_joints_of_the_robot_may_be_listed_in_any_order(contract):
    robot = replace(contract.robot, joints=contract.robot.joints[::-1])
    assert differences(replace(contract, robot=robot), contract) == []


def test_the_table_shows_what_an_engineer_checks(contract):
    table = describe(contract)
    for shown in (
        "50 Hz",
        "wxyz",
        "in_graph",
        "linear_velocity_y",
        "-0.5 .. 0.5",
        "damping",
        "friction",
        contract.sha256[:16],
    ):
        assert shown in table
    row = next(line for line in table.splitlines() if line.startswith("FR"))
    assert row.split()[1:3] == ["0.25", "-0.2"]
    assert "26" in row.split()


def test_every_section_is_frozen(contract):
    with pytest.raises(dataclasses.FrozenInstanceError):
        contract.timing.control_dt = 0.01
