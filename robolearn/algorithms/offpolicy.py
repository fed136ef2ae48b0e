"""The off-policy actor-critic: one loop for a policy head, a critic, its network, a target and a bonus of any kind."""

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import _foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]

from robolearn.algorithms.episodes import EpisodeMeans
from robolearn.algorithms.graphs import Step, graphed_where_it_pays
from robolearn.algorithms.offpolicy_config import (
    OffPolicyConfig,
    make_bonus,
    make_critic,
    make_network,
    make_policy,
    make_replay,
    make_target,
    policy_value,
)
from robolearn.buffers.replay import Batch
from robolearn.policies.action_value import ActionValue
from robolearn.policies.ensemble import relative_cost
from robolearn.policies.squashed import Sample, SquashedPolicy
from sim.errors import UserError
from tasks.vector_env import VectorEnv

_log = logging.getLogger(__name__)
_COUNTS = ("env_steps", "critic_steps", "policy_steps")
_PARTS = ("policy", "value", "critic", "bonus", "target", "slow_value", "slow_policy", "critic_optimizer",
          "policy_optimizer", "replay")  # fmt: skip


class OffPolicy:
    """Steps the worlds, stores every transition, and takes gradient steps on batches of the stored ones."""

    Config = OffPolicyConfig

    def __init__(self, env: VectorEnv, config: OffPolicyConfig, seed: int = 0):
        """Make the networks and the replay, whose memory is taken with the first step.

        Raises:
            UserError: the action space is unbounded or degenerate, or the replay too small for the worlds.
        """
        self.config, c = config, config
        self.device, self.num_envs = env.device, env.num_envs
        if c.precision != "float32" and self.device.type == "cpu" and (cost := relative_cost(c.precision)) > 1:
            _log.warning("a product in %s takes %.1f times as long as in float32 on this processor; "
                         "--algorithm.precision float32 trains sooner", c.precision, cost)  # fmt: skip
        torch.manual_seed(seed)
        low, high = action_bounds(env)
        sizes = {group: sum(env.observation_terms[group].values()) for group in ("policy", "critic")}
        self.policy = make_policy(c, sizes["policy"], low, high).to(self.device)
        self.critic = make_critic(c).to(self.device)
        network = make_network(c, sizes["critic"], len(low), self.critic.outputs)
        self.value = ActionValue(sizes["critic"], network, c.normalize_observation).to(self.device)
        self.bonus = make_bonus(c, self.policy, len(low)).to(self.device)
        self.target = make_target(c).to(self.device)
        self.slow_value = _slow_copy(self.value)
        self.slow_policy = _slow_copy(self.policy) if c.target_policy else self.policy
        slow = [self.slow_value, self.slow_policy] if c.target_policy else [self.slow_value]
        fast = [self.value, self.policy] if c.target_policy else [self.value]
        self._slow: list[torch.Tensor] = [p for module in slow for p in module.parameters()]
        self._fast: list[torch.Tensor] = [p for module in fast for p in module.parameters()]
        self.critic_optimizer = _adam(
            {"params": list(self.value.parameters()), "lr": c.learning_rate},
            {"params": list(self.target.parameters()), "lr": c.average_learning_rate},
        )
        self.policy_optimizer = _adam(
            {"params": list(self.policy.parameters()), "lr": c.learning_rate},
            {"params": [p for p in self.bonus.parameters() if p.requires_grad], "lr": c.alpha_learning_rate},
        )
        self._critic_group = "policy" if env.one_observation else "critic"
        fields = {"policy": sizes["policy"], self._critic_group: sizes["critic"]}
        fields |= {f"next_{name}": size for name, size in fields.items()} | {"action": len(low)}
        self.replay = make_replay(c, env, fields, self.target.gamma, drawn_seed())
        if c.batch_size > self.replay.steps * self.num_envs:
            raise UserError(f"batch_size {c.batch_size} is more than the replay's capacity for {self.num_envs} worlds")
        self.generator = torch.Generator(self.device).manual_seed(drawn_seed())
        self.started = False
        self.env_steps, self.critic_steps, self.policy_steps = 0, 0, 0
        self._sums: dict[str, tuple[torch.Tensor, int]] = {}
        self._graphed = self._new_graphs()

    @classmethod
    def policy_for(cls, env: VectorEnv, config: OffPolicyConfig) -> SquashedPolicy:
        """Return the policy alone, with weights of no meaning: it needs no replay.

        Raises:
            UserError: the action space is unbounded or degenerate.
        """
        return make_policy(config, sum(env.observation_terms["policy"].values()), *action_bounds(env)).to(env.device)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one `collect`."""
        return self.config.iteration_steps * self.num_envs

    def collect(self, env: VectorEnv) -> dict[str, float]:
        """Step the worlds, with gradient steps in between, and return means over the episodes that ended."""
        c = self.config
        if not self.started:
            env.reset()
            self.bonus.policy_changed(self.policy, 0)  # a policy given to begin with
            self._follow(1.0)
            self.started = True
        means = EpisodeMeans()
        for _ in range(c.iteration_steps):
            means.add(self._env_step(env))
            if self.env_steps >= c.warmup and len(self.replay) >= c.batch_size:
                for _ in range(c.updates_per_step):
                    self.gradient_step()
        return means.result()

    def update(self, progress: float = 0.0) -> dict[str, float]:
        """Return the metrics of the gradient steps that `collect` took; the learning is done there.

        Raises:
            UserError: the networks are no longer finite.
        """
        del progress
        metrics = {"replay/size": float(len(self.replay))}
        if self._sums:
            now = {name: (value, 1) for part in (self.bonus, self.target) for name, value in part.metrics().items()}
            sums = self._sums | now
            totals = torch.stack([total for total, _ in sums.values()]).tolist()  # the one wait for the device
            metrics |= {n: t / k for (n, (_, k)), t in zip(sums.items(), totals, strict=True)}
            self._sums = {}
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken:
            raise UserError(f"{', '.join(broken)} of the last {self.config.iteration_steps} steps are not finite; "
                            "lower learning_rate, or look for a reward or observation that explodes")  # fmt: skip
        return metrics

    def gradient_step(self) -> None:
        """Take one step of the critic on a batch from the replay, and of the policy when it is its turn."""
        c = self.config
        self.critic_steps += 1
        policy_too = self.critic_steps % c.policy_delay == 0
        self._note(self._graphed(self.replay.sample(c.batch_size), policy_too))
        if policy_too:
            self.policy_steps += 1
            self.bonus.policy_changed(self.policy, self.policy_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit; the replay's rows are views."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**parts, **counts, "generator": self.generator.get_state(), "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same sizes."""
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        for name in _COUNTS:
            setattr(self, name, state[name])
        self.generator.set_state(state["generator"].cpu())
        self.started = state["started"]
        self._graphed = self._new_graphs()  # the optimisers' tensors are others now

    def learn(self, batch: Batch, policy_too: bool) -> dict[str, torch.Tensor]:
        """Take a step of the critic on a batch, and if asked of the policy and the slow copies; return () means.

        All on the device and in place, so that it can be recorded as a CUDA graph.
        """
        noted = self._critic_step(batch)
        if policy_too:
            noted |= self._policy_step(batch)
            self._follow(self.config.polyak)
        return noted

    def _new_graphs(self) -> Step:
        return graphed_where_it_pays(self.learn, self.device, [self.generator])

    @torch.no_grad()
    def _env_step(self, env: VectorEnv) -> dict[str, float]:
        """Take a step in every world, store it, and return what the environment logs of it."""
        obs = env.obs_buf
        if self.env_steps < self.config.warmup:
            shape = (self.num_envs, len(self.policy.centre))
            action = torch.rand(shape, generator=self.generator, device=self.device) * 2 - 1
        else:
            action = self.policy.explore(obs["policy"], self.generator)
        _, reward, terminated, truncated, extras = env.step(self.policy.to_env(action))
        valid = extras.get("valid")
        for normalizer, group in ((self.policy.normalizer, "policy"), (self.value.normalizer, "critic")):
            if normalizer is not None:
                normalizer.update(obs[group] if valid is None else obs[group][valid])
        final = extras["final_obs"]
        fields = {"action": action}
        for group in {"policy", self._critic_group}:
            fields |= {group: obs[group], f"next_{group}": final[group]}
        self.replay.add(fields, reward, terminated, truncated, valid)
        self.env_steps += self.num_envs
        return extras["log"]

    def _critic_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        fields = batch.fields
        with torch.no_grad():
            next_sample = self.slow_policy.target(self.slow_policy.output(fields["next_policy"]), self.generator)
            following = self.slow_value(fields[f"next_{self._critic_group}"], next_sample.action)
            bonus = self.bonus.following(next_sample)

        @torch.no_grad()
        def slow() -> torch.Tensor:
            return self.critic.mean(self.slow_value(fields[self._critic_group], fields["action"]))

        output = self.value(fields[self._critic_group], fields["action"])
        mean = self.critic.mean(output)
        loss = self.critic.loss(
            output, following, self.target.reward(batch), batch.discount, bonus, self.generator
        ) + self.target.loss(batch, slow, self.critic.mean(following))
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return {"loss/value": loss.detach(), "value/mean": mean.detach().mean()}

    def _policy_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        policy_obs, critic_obs = batch.fields["policy"], batch.fields[self._critic_group]
        members = 1 if self.config.policy_value == "first" else None

        def objective(sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
            each = len(sample.action) // len(policy_obs)  # actions for each observation
            obs, seen = (x if each == 1 else x.repeat_interleave(each, 0) for x in (critic_obs, policy_obs))
            output = self.value(obs, sample.action, frozen=True, members=members)
            value = policy_value(self.config, self.critic.mean(output))
            return self.bonus.cost(seen, sample) - value, value

        loss, sample = self.policy.improve(self.policy.output(policy_obs), objective, self.generator)
        self.policy_optimizer.zero_grad()
        (loss + self.bonus.loss(sample)).backward()
        self.policy_optimizer.step()
        return {"loss/policy": loss.detach(), "policy/entropy": -sample.log_prob.detach().mean()}

    @torch.no_grad()
    def _follow(self, rate: float) -> None:
        """Move the slow copies towards the learned networks."""
        _foreach_lerp_(self._slow, self._fast, rate)
        self.target.moved(rate)

    def _note(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)


def action_bounds(env: VectorEnv) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the limits (A,) of the action.

    Raises:
        UserError: the policy has no range to squash its actions into.
    """
    low, high = env.single_action_space.low, env.single_action_space.high
    bad = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
    if bad.any():
        i = int(bad.nonzero()[0][0])
        raise UserError(f"action {i} ranges from {low[i]:g} to {high[i]:g}; off-policy algorithms need finite limits "
                        "that differ")  # fmt: skip
    return torch.from_numpy(low), torch.from_numpy(high)


def drawn_seed() -> int:
    """Return a seed from the global generator: streams of their own for what is drawn independently."""
    return int(torch.randint(2**62, ()))


def _slow_copy(module: Any) -> Any:
    """Return a copy that takes no gradients and normalises with the same statistics as the original."""
    slow = copy.deepcopy(module).requires_grad_(False)
    slow.normalizer = module.normalizer
    return slow


def _adam(*groups: dict[str, Any]) -> torch.optim.Adam:
    kept = [group for group in groups if group["params"]]
    # Capturable keeps the number of steps on the device, as a CUDA graph has to find it.
    return torch.optim.Adam(kept, fused=True, capturable=kept[0]["params"][0].is_cuda)
