"""A small robot of four joints, a policy for it, and the contract between them."""

import numpy as np
import pytest
import torch

from deploy.contract import (
    Action,
    Command,
    Contract,
    Joint,
    Normaliser,
    Observation,
    PolicyInfo,
    Provenance,
    Robot,
    Safety,
    Term,
    Timing,
    Training,
)

JOINTS = ("FL", "FR", "RL", "RR")
DEFAULT = (0.1, -0.2, 1.0 / 3.0, -1.4999999999999998)


def term(name: str, source: str, dim: int, **fields) -> Term:
    return Term(name=name, source=source, dim=dim, scale=(1.0,) * dim, offset=(0.0,) * dim, **fields)


@pytest.fixture
def contract() -> Contract:
    return Contract(
        policy=PolicyInfo(),
        robot=Robot(
            name="quad",
            base_frame="base",
            imu_frame="imu",
            joints=tuple(
                Joint(
                    name=name,
                    default_pos=position,
                    kp=25.0 + i,
                    kd=0.7,
                    lower=-2.0,
                    upper=None,
                    torque_limit=23.7,
                )
                for i, (name, position) in enumerate(zip(JOINTS, DEFAULT, strict=True))
            ),
        ),
        timing=Timing(physics_dt=0.005, decimation=4, control_dt=0.02, action_delay_range_s=(0.0, 0.02)),
        action=Action(
            joints=JOINTS,
            type="position",
            scale=(0.25, 0.25, 0.5, 0.1),
            offset=DEFAULT,
            clip_raw=((-1.0, 1.0),) * 4,
            clip_target=((-2.0, 2.0), (-2.0, 2.0), (-2.0, 0.5), (-2.0, 2.0)),
        ),
        observation=Observation(
            terms=(
                term("angular_velocity", "angular_velocity", 3, unit="rad/s", frame="base", noise_train=0.2),
                term("gravity", "projected_gravity", 3, frame="base"),
                term("joint_position", "joint_position_relative", 4, unit="rad", joints=JOINTS),
                term("joint_velocity", "joint_velocity", 4, unit="rad/s", joints=JOINTS),
                term("last_action", "last_action", 4, joints=JOINTS),
                term("command", "command", 3, unit="m/s, m/s, rad/s"),
            )
        ),
        normaliser=Normaliser(location="in_graph", count=12345, mean=(0.1,) * 21, std=(5e-324,) * 21),
        commands=(
            Command(
                name="velocity",
                components=("linear_velocity_x", "linear_velocity_y", "angular_velocity_z"),
                units=("m/s", "m/s", "rad/s"),
                ranges=((-1.0, 1.0), (-0.5, 0.5), (-1.0, 1.0)),
                default=(0.0, 0.0, 0.0),
            ),
        ),
        safety=Safety(tilt_limit_rad=1.0, stale_s=0.1, overrun_limit=5),
        provenance=Provenance(
            task="Quad-Velocity",
            algorithm="ppo",
            seed=2**53 + 1,
            iteration=100,
            git_commit="0" * 40,
            git_dirty=False,
            config_sha256="ab",
            checkpoint_sha256="cd",
            versions={"torch": "2.13.0"},
        ),
        training=Training(randomisation={"friction": (0.4, 1.2)}, evaluation={"fall_rate": 0.012345678901234567}),
    )


class NormalisedMlp(torch.nn.Module):
    """A policy as the trainer makes it: normaliser, network, raw action."""

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.mean = torch.nn.Buffer(torch.randn(observation_dim, generator=generator))
        self.std = torch.nn.Buffer(0.5 + torch.rand(observation_dim, generator=generator))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(observation_dim, 32), torch.nn.ELU(), torch.nn.Linear(32, action_dim)
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.clamp((observation - self.mean) / self.std, -5.0, 5.0))


@pytest.fixture
def module() -> NormalisedMlp:
    return NormalisedMlp(21, 4)


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 21)).astype(np.float32)
