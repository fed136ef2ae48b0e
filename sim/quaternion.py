"""Rotations of batches of vectors by unit quaternions in MuJoCo's order (w, x, y, z)."""

import torch


def rotate(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors (N, 3) from the body frame to the world frame by quaternions (N, 4) w, x, y, z."""
    w, xyz = quaternion[..., :1], quaternion[..., 1:]
    t = 2.0 * torch.linalg.cross(xyz, vector)
    return vector + w * t + torch.linalg.cross(xyz, t)


def rotate_inverse(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors (N, 3) from the world frame to the body frame by quaternions (N, 4) w, x, y, z."""
    w, xyz = quaternion[..., :1], quaternion[..., 1:]
    t = 2.0 * torch.linalg.cross(xyz, vector)
    return vector - w * t + torch.linalg.cross(xyz, t)


def gravity_in_body(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the unit gravity direction (N, 3) in the body frame for quaternions (N, 4); upright is (0, 0, -1)."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.stack((2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1), -1)


def from_yaw(yaw: torch.Tensor) -> torch.Tensor:
    """Return quaternions (N, 4) w, x, y, z of rotations by yaw (N,) in rad about the vertical."""
    zero = torch.zeros_like(yaw)
    return torch.stack((torch.cos(yaw / 2), zero, zero, torch.sin(yaw / 2)), -1)
