"""Policy optimisation towards a ratio known in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import softplus

from robolearn.algorithms.surrogate import Learner, Sample, Surrogate
from robolearn.policies.gaussian import ValueFunction
from robolearn.policies.normalizer import Normalizer

if TYPE_CHECKING:
    from robolearn.algorithms.ppo import PPOConfig


class BPO(Surrogate):
    """Bounded policy optimisation (arXiv 2604.18578): |r - r*| |G - V|, G the return and V the value.

    The target ratio r* = 1 - eps + 2 eps sigmoid((G - u) / temperature) is the best within [1 - eps, 1 + eps]; the
    head u(s) sets it to 1 on average over the actions, where E[sigmoid(G - u)] = 1/2 and so the loss
    softplus(G - u) - (G - u) / 2 is least. The sigmoid has unit width, so returns are brought to unit variance here.
    """

    def __init__(self, config: PPOConfig, critic_size: int):
        super().__init__()
        self.epsilon, self.temperature = config.clip, config.temperature
        self.coefficient = config.value_coefficient
        self.head = ValueFunction(critic_size, config.hidden, config.activation)
        self.returns = Normalizer(1)

    def begin(self, learner: Learner, progress: float) -> None:
        self.returns.update(learner.rollout.flat("target")[:, None])

    def forward(self, sample: Sample) -> torch.Tensor:
        target = self.returns(sample.target[:, None]).squeeze(1)
        weight = (sample.target - sample.value.detach()).abs() * self.returns.scale
        excess = target - self.head(sample.critic_obs)
        best = 1 - self.epsilon + 2 * self.epsilon * torch.sigmoid(excess.detach() / self.temperature)
        return (sample.ratio - best).abs() * weight + self.coefficient * (softplus(excess) - excess / 2)

    def finish(self, learner: Learner) -> None:
        self.head.normalizer.update(learner.rollout.flat("critic_obs"))
