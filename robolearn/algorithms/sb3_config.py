"""The configs of Stable-Baselines3's algorithms, made from the constructors of the installed version."""

import inspect
import math
import re
from dataclasses import dataclass, field, fields, make_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from robolearn.policies.mlp import ACTIVATIONS
from sim.errors import UserError, unknown

OURS = (
    "policy", "env", "policy_kwargs", "seed", "device", "verbose", "tensorboard_log", "stats_window_size",
    "_init_setup_model", "action_noise", "use_sde", "sde_sample_freq", "use_sde_at_warmup",
    "replay_buffer_class", "replay_buffer_kwargs", "rollout_buffer_class", "rollout_buffer_kwargs",
    "optimize_memory_usage",
)  # fmt: skip
"""Arguments that are set from other fields or from the training's own config, or that no checkpoint could hold."""
_PLAIN = (float, int, bool, str, type(None))
"""The types of an argument that a config can hold; numbers before texts, so that a word that is a number is one."""
_LOWEST = {"gradient_steps": -1, "learning_starts": 0}
"""Of whole numbers that may be less than 1."""
_SIGNED = ("target_entropy",)
"""Numbers that may be negative."""


@dataclass(kw_only=True)
class Sb3Config:
    """Hyper-parameters that Stable-Baselines3 takes as objects, or leaves to wrappers."""

    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of policy and critics."""
    activation: str = "relu"
    """Activation between them."""
    normalize_observation: bool = False
    """Normalise observations by their running statistics, with VecNormalize."""
    normalize_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return, with VecNormalize."""
    clip_observation: float = 10.0
    """Normalised observations are cut off here."""
    iteration_steps: int = 1
    """Steps of each world between two rows of metrics; rounded up to whole rollouts."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        if any(size < 1 for size in self.hidden):
            raise UserError(f"hidden must hold sizes of at least 1, not {list(self.hidden)}")
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is int and value < _LOWEST.get(f.name, 1):
                raise UserError(f"{f.name} must be at least {_LOWEST.get(f.name, 1)}, not {value}")
            if type(value) is float and not (0 <= value < math.inf or (f.name in _SIGNED and math.isfinite(value))):
                raise UserError(f"{f.name} must be finite and not negative, not {value}")
        values = vars(self)
        if values["gamma"] > 1:
            raise UserError(f"gamma must be between 0 and 1, not {values['gamma']}")
        if values.get("batch_size", 0) > values.get("buffer_size", math.inf):
            raise UserError(f"batch_size {values['batch_size']} is more than buffer_size {values['buffer_size']}")


@dataclass(kw_only=True)
class Sb3OnPolicyConfig(Sb3Config):
    """The same of the on-policy algorithms."""

    normalize_action: bool = True
    """Let SB3 see actions in units of half their range: it begins to explore with a standard deviation of 1."""


@dataclass(kw_only=True)
class Sb3OffPolicyConfig(Sb3Config):
    """The same of the off-policy algorithms."""

    iteration_steps: int = 1000
    """Steps of each world between two rows of metrics; rounded up to whole rollouts."""
    action_noise: float = 0.0
    """Standard deviation of normal noise on the actions while learning, in units of half their range."""


def config_class(base: type[Sb3Config], learner: type[Any], **defaults: Any) -> type[Any]:
    """Return the config dataclass of a Stable-Baselines3 algorithm.

    Args:
        base: the fields that are not arguments of its constructor.
        learner: the algorithm's class.
        defaults: of fields of ``base``, where they differ for it.
    """
    own = {f.name: f for f in fields(base)}
    theirs = arguments(learner)
    hints = get_type_hints(base) | theirs
    parameters = inspect.signature(learner.__init__).parameters
    values = {name: f.default for name, f in own.items()} | {name: parameters[name].default for name in theirs}
    values |= defaults
    made = make_dataclass(
        f"{learner.__name__}Config",
        [(name, hints[name], field(default=value)) for name, value in values.items()],
        bases=(base,),
        kw_only=True,
    )
    made.__module__ = __name__
    # Where the help of the command line reads what a field means.
    about = _meanings(learner) | _own_meanings(base)
    made.__doc__ = "\n".join(
        [f"Hyper-parameters of Stable-Baselines3's {learner.__name__}.", ""]
        + [f":param {name}: {about.get(name, '')}" for name in values]
    )
    return made


def arguments(learner: type[Any]) -> dict[str, Any]:
    """Return the type of each argument of an algorithm's constructor that a config can hold."""
    found = {}
    for name, parameter in inspect.signature(learner.__init__).parameters.items():
        hint = parameter.annotation
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        plain = [t for t in _PLAIN if t in members]
        if name not in OURS and plain:
            found[name] = Union[tuple(plain)]  # noqa: UP007 - the members are not known before
    return found


def _meanings(learner: type[Any]) -> dict[str, str]:
    """Return what the docstring of a class says of each parameter, on one line each."""
    text = inspect.getdoc(learner) or ""
    parts = re.findall(r":param (\w+): (.*?)(?=\n:|\n\n|\Z)", text, re.DOTALL)
    return {name: " ".join(meaning.split()) for name, meaning in parts}


def _own_meanings(base: type[Any]) -> dict[str, str]:
    """Return the text below each field of a config class and of those it inherits from."""
    texts: dict[str, str] = {}
    for cls in reversed(base.__mro__[:-1]):
        texts |= dict(re.findall(r'^    (\w+): .*\n    """(.*)"""$', inspect.getsource(cls), re.MULTILINE))
    return texts
