"""Rotations against MuJoCo's own."""

from typing import Any

import mujoco
import numpy as np
import torch

from sim import quaternion


def random_quaternions(n: int) -> torch.Tensor:
    values = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return values / values.norm(dim=1, keepdim=True)


def mujoco_rotation(vectors: torch.Tensor, quaternions: torch.Tensor, inverse: bool) -> torch.Tensor:
    rotated = np.zeros((len(vectors), 3))
    for out, vector, quat in zip(rotated, vectors.numpy(), quaternions.numpy(), strict=True):
        if inverse:
            conjugate = np.zeros(4)
            mujoco.mju_negQuat(conjugate, quat)
            quat = conjugate
        mujoco.mju_rotVecQuat(out, vector, quat)
    return torch.from_numpy(rotated)


def test_rotations_are_mujocos():
    quaternions = random_quaternions(100)
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # A dozen float64 operations on numbers of order 1.
    close: dict[str, Any] = {"rtol": 0.0, "atol": 1e-14}
    there = quaternion.rotate(quaternions, vectors)
    back = quaternion.rotate_inverse(quaternions, vectors)
    torch.testing.assert_close(there, mujoco_rotation(vectors, quaternions, inverse=False), **close)
    torch.testing.assert_close(back, mujoco_rotation(vectors, quaternions, inverse=True), **close)
    torch.testing.assert_close(quaternion.rotate_inverse(quaternions, there), vectors, **close)


def test_gravity_in_the_body_is_down_rotated_back():
    quaternions = random_quaternions(100)
    down = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64).expand(100, 3)
    expected = mujoco_rotation(down, quaternions, inverse=True)
    torch.testing.assert_close(quaternion.gravity_in_body(quaternions), expected, rtol=0.0, atol=1e-14)


def test_yaw_is_a_turn_about_the_vertical():
    yaw = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    expected = np.zeros((len(yaw), 4))
    for out, angle in zip(expected, yaw.tolist(), strict=True):
        mujoco.mju_axisAngle2Quat(out, np.array([0.0, 0.0, 1.0]), angle)
    torch.testing.assert_close(quaternion.from_yaw(yaw), torch.from_numpy(expected), rtol=0.0, atol=1e-15)
