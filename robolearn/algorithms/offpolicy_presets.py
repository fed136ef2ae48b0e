"""The off-policy algorithms by their own names: each is a set of defaults of the one core."""

from dataclasses import dataclass

from robolearn.algorithms.offpolicy import OffPolicy
from robolearn.algorithms.offpolicy_config import OffPolicyConfig


class SAC(OffPolicy):
    """Soft actor-critic with a learned temperature (Haarnoja et al. 2018b)."""

    Config = OffPolicyConfig


@dataclass(kw_only=True)
class TD3Config(OffPolicyConfig):
    """Hyper-parameters of TD3 (Fujimoto et al. 2018)."""

    head: str = "deterministic"
    bonus: str = "none"
    policy_value: str = "first"
    target_policy: bool = True
    policy_delay: int = 2


class TD3(OffPolicy):
    """Twin delayed deterministic policy gradient."""

    Config = TD3Config


@dataclass(kw_only=True)
class DDPGConfig(TD3Config):
    """Hyper-parameters of DDPG (Lillicrap et al. 2016): one critic, no smoothing, no delay."""

    critics: int = 1
    policy_delay: int = 1
    target_noise: float = 0.0


class DDPG(OffPolicy):
    """Deep deterministic policy gradient."""

    Config = DDPGConfig
