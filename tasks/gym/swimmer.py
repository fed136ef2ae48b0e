"""Three links in a viscous fluid: swim forward."""

from dataclasses import dataclass

from tasks.gym.suite import GymConfig, PlanarTask
from tasks.task import Terms, terms


@dataclass(kw_only=True)
class SwimmerConfig(GymConfig):
    """Timing and weights of Gymnasium's Swimmer-v5."""

    physics_dt: float = 0.01
    control_dt: float = 0.04
    episode_s: float = 40.0
    reset_noise: float = 0.1
    weights: dict[str, float] = terms(reward_forward=1.0, reward_ctrl=-1e-4)


class Swimmer(PlanarTask[SwimmerConfig]):
    """Swim along x. The actions are the torques of the two joints, as fractions of their gears."""

    Config = SwimmerConfig
    model_file = "swimmer.xml"

    def observe(self) -> dict[str, Terms]:
        policy = {"qpos": self.sim.qpos[:, 2:], "qvel": self.sim.qvel}  # (N, 3), (N, 5): all but the x and y positions
        return {"policy": policy, "critic": policy}
