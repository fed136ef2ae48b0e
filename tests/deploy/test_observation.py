"""The observation on the robot, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from deploy.contract import Contract, HeldJoint
from deploy.errors import ContractError
from deploy.observation import ObservationBuilder
from deploy.robot_io import RobotProfile, RobotState

MOTORS = ("RR", "FL", "RL", "FR")
PROFILE = RobotProfile(name="bench", joints=MOTORS, imu_frame="imu")
COMMAND = np.array([0.5, -0.25, 1.0])
LAST_ACTION = np.array([0.1, 0.2, 0.3, 0.4])

# Rolled about its own x axis by an angle of cosine 0.6 and sine 0.8, then turned by a right angle about the world's z:
# in its own frame the robot sees gravity at (0, -0.8, -0.6).
HALF = np.sqrt(0.5)
ROLLED = HALF * np.array([np.sqrt(0.8), np.sqrt(0.2), np.sqrt(0.2), np.sqrt(0.8)])


@pytest.fixture
def state() -> RobotState:
    state = RobotState.empty(4)
    #                          RR    FL   RL   FR
    state.joint_position[:] = [-1.0, 0.3, 1.0, 0.0]
    state.joint_velocity[:] = [4.0, 1.0, 3.0, 2.0]
    state.imu_quaternion[:] = ROLLED
    state.imu_angular_velocity[:] = [1.0, 2.0, 3.0]
    return state


def test_the_vector_in_contract_order(contract, state):
    vector = ObservationBuilder(contract, PROFILE).build(state, COMMAND, LAST_ACTION)
    expected = [
        *(1.0, 2.0, 3.0),
        *(0.0, -0.8, -0.6),
        *(0.3 - 0.1, 0.0 + 0.2, 1.0 - 1.0 / 3.0, -1.0 + 1.5),
        *(1.0, 2.0, 3.0, 4.0),
        *(0.1, 0.2, 0.3, 0.4),
        *(0.5, -0.25, 1.0),
    ]
    assert vector.shape == (1, 21)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector[0], expected, rtol=0, atol=1e-6)


def test_an_imu_that_is_turned_in_the_base(contract, state):
    """Mounted a right angle about z: what the IMU calls x is the base's y, what it calls y is the base's -x."""
    turned = replace(contract, robot=replace(contract.robot, imu_mounting=(HALF, 0.0, 0.0, HALF)))
    vector = ObservationBuilder(turned, PROFILE).build(state, COMMAND, LAST_ACTION)[0]
    np.testing.assert_allclose(vector[:3], [-2.0, 1.0, 3.0], atol=1e-6)
    np.testing.assert_allclose(vector[3:6], [0.8, 0.0, -0.6], atol=1e-6)


def _first_term(contract: Contract, **changes) -> Contract:
    terms = contract.observation.terms
    return replace(
        contract,
        observation=replace(contract.observation, terms=(replace(terms[0], **changes), *terms[1:])),
        normaliser=replace(contract.normaliser, mean=None, std=None),
    )


def test_a_term_is_clipped_then_scaled_then_shifted(contract, state):
    changed = _first_term(contract, clip=(-2.5, 2.5), scale=(2.0, 3.0, 4.0), offset=(0.0, 0.5, -1.0))
    vector = ObservationBuilder(changed, PROFILE).build(state, COMMAND, LAST_ACTION)[0]
    np.testing.assert_allclose(vector[:3], [2.0, 6.5, 9.0], atol=1e-6)


def test_terms_name_their_joints_in_their_own_order(contract, state):
    terms = list(contract.observation.terms)
    terms[3] = replace(terms[3], joints=("RR", "FR"), dim=2, scale=(1.0, 1.0), offset=(0.0, 0.0))
    legs = replace(
        contract,
        observation=replace(contract.observation, terms=tuple(terms)),
        normaliser=replace(contract.normaliser, mean=None, std=None),
    )
    vector = ObservationBuilder(legs, PROFILE).build(state, COMMAND, LAST_ACTION)[0]
    np.testing.assert_allclose(vector[10:12], [4.0, 2.0])


@pytest.mark.parametrize("fill", ["repeat_first", "zeros"])
def test_history_term_major_is_oldest_first_within_a_term(contract, state, fill):
    history = _first_term(contract, history=3)
    history = replace(history, observation=replace(history.observation, history_fill=fill))
    builder = ObservationBuilder(history, PROFILE)
    seen = []
    for rate in (1.0, 2.0, 3.0, 4.0):
        state.imu_angular_velocity[:] = rate
        vector = builder.build(state, COMMAND, LAST_ACTION)[0]
        seen.append(vector[:9:3].tolist())
        np.testing.assert_allclose(vector[9:12], [0.0, -0.8, -0.6], atol=1e-6)
    first = 1.0 if fill == "repeat_first" else 0.0
    assert seen == [[first, first, 1.0], [first, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]


def test_history_frame_major_is_a_whole_step_after_another(contract, state):
    terms = tuple(replace(term, history=2) for term in contract.observation.terms)
    frames = replace(
        contract,
        observation=replace(contract.observation, terms=terms, layout="frame_major"),
        normaliser=replace(contract.normaliser, mean=None, std=None),
    )
    builder = ObservationBuilder(frames, PROFILE)
    plain = ObservationBuilder(contract, PROFILE)
    older = plain.build(state, COMMAND, LAST_ACTION).copy()
    builder.build(state, COMMAND, LAST_ACTION)
    state.joint_velocity += 7.0
    newer = plain.build(state, COMMAND, LAST_ACTION)
    np.testing.assert_array_equal(builder.build(state, COMMAND, LAST_ACTION), np.concatenate([older, newer], axis=1))


@pytest.mark.parametrize(
    ("joints", "said"),
    [
        (("RR", "FL", "RL"), "FR"),
        (("RR", "FL", "RL", "FR", "tail"), "tail"),
        (("RR", "FL", "RL", "FR", "FR"), "twice"),
    ],
)
def test_joints_that_are_not_the_robots_are_named(contract, joints, said):
    with pytest.raises(ContractError, match=said):
        ObservationBuilder(contract, replace(PROFILE, joints=joints))


def test_a_joint_that_the_contract_holds_still_is_the_robots_too(contract):
    held = replace(contract.robot, uncontrolled=(HeldJoint(name="tail", hold_pos=0.0, kp=1.0, kd=0.1),))
    builder = ObservationBuilder(
        replace(contract, robot=held), replace(PROFILE, joints=("tail", "RR", "FL", "RL", "FR"))
    )
    assert builder.order.policy.tolist() == [2, 4, 3, 1]
    assert builder.order.held.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "linear_velocity", "needs_estimator": True}, "'linear_velocity' needs a state estimator"),
        ({"name": "heights", "source": "height_scan"}, "'heights' is measured as 'height_scan'"),
        ({"name": "rates", "source": "joint_velocity"}, "'rates' has 3 entries, and its source has 0"),
    ],
)
def test_a_term_the_robot_cannot_supply_is_refused_by_name(contract, changes, said):
    with pytest.raises(ContractError, match=said):
        ObservationBuilder(_first_term(contract, **changes), PROFILE)


def test_another_imu_or_quaternion_order_is_refused(contract):
    with pytest.raises(ContractError, match="torso"):
        ObservationBuilder(contract, replace(PROFILE, imu_frame="torso"))
    flipped = replace(contract, observation=replace(contract.observation, quaternion_order="xyzw"))
    with pytest.raises(ContractError, match="xyzw"):
        ObservationBuilder(flipped, PROFILE)
