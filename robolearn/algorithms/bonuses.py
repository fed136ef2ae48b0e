"""What an off-policy policy is paid besides the critic's value: nothing, entropy, or nearness to an earlier policy."""

import copy
from abc import ABC, abstractmethod

import torch
from torch import nn

from robolearn.policies.squashed import Sample, SquashedPolicy


class Bonus(nn.Module, ABC):
    """One shape of call for all of them; learnable parameters are trained with ``loss``."""

    @abstractmethod
    def following(self, sample: Sample) -> torch.Tensor:
        """Return the bonus (N,) that the value of the next observation includes."""

    @abstractmethod
    def cost(self, observation: torch.Tensor, sample: Sample) -> torch.Tensor:
        """Return the cost (N,) of actions at policy observations (N, D), added to the policy's loss."""

    def loss(self, sample: Sample) -> torch.Tensor:
        """Return the loss () of the bonus's own parameters, given the policy's sample."""
        return sample.log_prob.new_zeros(())

    def policy_changed(self, policy: SquashedPolicy, steps: int) -> None:
        """Take note that the policy has taken so many steps."""
        del policy, steps

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return () tensors to log."""
        return {}


class NoBonus(Bonus):
    """Nothing."""

    def following(self, sample: Sample) -> torch.Tensor:
        return sample.log_prob.new_zeros(())

    def cost(self, observation: torch.Tensor, sample: Sample) -> torch.Tensor:
        return sample.log_prob.new_zeros(())


class Temperature(Bonus):
    """Entropy, at a temperature that holds the policy's to a target (Haarnoja et al. 2018b, eq. 17).

    The logarithm of the temperature is what is learned.
    """

    def __init__(self, initial: float, target_entropy: float):
        """Begin with a temperature; the entropy is that of the action in the unit box, in nats."""
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(initial).log())
        self.target_entropy = target_entropy

    def following(self, sample: Sample) -> torch.Tensor:
        return -self.log_alpha.detach().exp() * sample.log_prob

    def cost(self, observation: torch.Tensor, sample: Sample) -> torch.Tensor:
        return self.log_alpha.detach().exp() * sample.log_prob

    def loss(self, sample: Sample) -> torch.Tensor:
        return -self.log_alpha * (sample.log_prob.detach().mean() + self.target_entropy)

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"policy/temperature": self.log_alpha.detach().exp()}


class NearOld(Bonus):
    """Entropy and a divergence from an earlier policy (Tomar et al. 2022, mirror descent policy optimisation).

    The policy's cost is ``kl log pi(a) + (entropy - kl) log pi_old(a)``: the divergence at weight ``kl - entropy``
    and the entropy at weight ``entropy``, which the value of the next observation includes too.
    """

    def __init__(self, policy: SquashedPolicy, kl: float, entropy: float, period: int):
        """Begin at a policy, and take the present one in its place every ``period`` of its steps."""
        super().__init__()
        self.old = copy.deepcopy(policy).requires_grad_(False)
        self.old.normalizer = policy.normalizer
        self.kl, self.entropy, self.period = kl, entropy, period

    def following(self, sample: Sample) -> torch.Tensor:
        return -self.entropy * sample.log_prob

    def cost(self, observation: torch.Tensor, sample: Sample) -> torch.Tensor:
        old = self.old.log_prob(self.old.output(observation), sample.u)
        return self.kl * sample.log_prob + (self.entropy - self.kl) * old

    def policy_changed(self, policy: SquashedPolicy, steps: int) -> None:
        if steps % self.period == 0:
            for old, new in zip(self.old.parameters(), policy.parameters(), strict=True):
                old.copy_(new.detach())
