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


@dataclass(kw_only=True)
class DSACConfig(OffPolicyConfig):
    """Hyper-parameters of DSAC-T (Duan et al. 2025)."""

    critic: str = "gaussian"
    target_policy: bool = True
    policy_delay: int = 2
    learning_rate: float = 1e-4
    hidden: tuple[int, ...] = (256, 256, 256)
    activation: str = "gelu"


class DSAC(OffPolicy):
    """Soft actor-critic whose critics predict a normal distribution of the return."""

    Config = DSACConfig


@dataclass(kw_only=True)
class FastTD3Config(OffPolicyConfig):
    """Hyper-parameters of FastTD3 (Seo et al. 2025), for many worlds."""

    head: str = "deterministic"
    critic: str = "categorical"
    bonus: str = "none"
    policy_delay: int = 2
    updates_per_step: int = 2
    batch_size: int = 2048
    warmup: int = 2000
    iteration_steps: int = 100
    polyak: float = 0.1
    exploration_noise: tuple[float, float] = (0.001, 0.4)
    target_noise: float = 0.001
    normalize_observation: bool = True


class FastTD3(OffPolicy):
    """TD3 with categorical critics, large batches and exploration of another strength in each of many worlds."""

    Config = FastTD3Config


@dataclass(kw_only=True)
class FastSACConfig(FastTD3Config):
    """Hyper-parameters of FastSAC (Seo et al. 2025b), for many worlds."""

    head: str = "tanh_gaussian"
    bonus: str = "temperature"
    policy_value: str = "mean"
    initial_alpha: float = 0.001
    target_entropy: float = 0.0
    log_std_range: tuple[float, float] = (-5.0, 0.0)
    activation: str = "silu"


class FastSAC(OffPolicy):
    """Soft actor-critic with categorical critics and large batches, for many worlds."""

    Config = FastSACConfig


@dataclass(kw_only=True)
class MDPOConfig(OffPolicyConfig):
    """Hyper-parameters of off-policy mirror descent policy optimisation (Tomar et al. 2022)."""

    bonus: str = "kl"
    policy_value: str = "first"


class MDPO(OffPolicy):
    """Soft actor-critic whose policy stays near an earlier one."""

    Config = MDPOConfig


@dataclass(kw_only=True)
class PMOEConfig(OffPolicyConfig):
    """Hyper-parameters of soft actor-critic with a mixture of experts (Ren et al. 2021)."""

    head: str = "mixture"


class PMOE(OffPolicy):
    """Soft actor-critic whose policy chooses among experts."""

    Config = PMOEConfig


@dataclass(kw_only=True)
class ARODDPGConfig(TD3Config):
    """Hyper-parameters of average-reward off-policy DDPG (Saxena et al. 2023)."""

    target: str = "average"
    policy_value: str = "min"
    target_noise: float = 0.0
    exploration_noise: tuple[float, float] = (0.2, 0.2)


class ARODDPG(OffPolicy):
    """Deterministic policy gradient for the average reward, in tasks that do not terminate."""

    Config = ARODDPGConfig
