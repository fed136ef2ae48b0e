"""The policy contract, schema 1: what a policy was trained to be given and to be obeyed as, in one JSON document.

It lives in the metadata of the ONNX file it describes, so that the two cannot be separated. Units are SI, quaternions
are (w, x, y, z), joint values are on the joint's side of the gearbox with the sign of the robot's model: the sign and
ratio of a motor belong to the robot's own driver, not to the policy.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from deploy.errors import ContractError
from deploy.schema import Section, added, build, plain

SCHEMA_VERSION = "1.1"

Range = tuple[float, float]
"""Low and high end, both included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyInfo(Section):
    """What kind of policy the graph holds. `opset`, `ir_version` and `producer` are None until it is exported."""

    kind: Literal["mlp"] = "mlp"
    deterministic: bool = True
    opset: int | None = None
    ir_version: int | None = None
    producer: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphTensor(Section):
    """One input or output of the graph; None in `shape` is the batch, N."""

    name: str
    shape: tuple[int | None, ...]
    dtype: Literal["float32"]
    role: Literal["observation", "action", "target"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph(Section):
    """The ONNX graph. `model_sha256` covers all of the file but its metadata, where this document is."""

    mode: Literal["network"]
    external_data: Literal[False]
    model_sha256: str
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint(Section):
    """One joint that the policy drives. Positions in rad or m, gains per rad or m; None is no limit."""

    name: str
    default_pos: float
    kp: float
    kd: float
    lower: float | None = None
    upper: float | None = None
    vel_limit: float | None = None
    torque_limit: float | None = None
    armature: float = 0.0
    friction: float = 0.0
    unit: Literal["rad", "m"] = "rad"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldJoint(Section):
    """A joint of the robot that the policy does not drive: the controller holds it at `hold_pos`."""

    name: str
    hold_pos: float
    kp: float
    kd: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Robot(Section):
    """The robot of the training. `imu_mounting` (w, x, y, z) turns a vector of the IMU's frame into the base frame.

    A task without a robot has no joints and no frames.
    """

    name: str
    variant: str = ""
    model_sha256: str = ""
    base_frame: str = ""
    imu_frame: str = ""
    imu_mounting: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    joints: tuple[Joint, ...] = ()
    uncontrolled: tuple[HeldJoint, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _unique("robot joint", [joint.name for joint in (*self.joints, *self.uncontrolled)])
        if not math.isclose(math.hypot(*self.imu_mounting), 1.0, rel_tol=1e-6):
            raise ContractError("policy contract: robot.imu_mounting must be a unit quaternion (w, x, y, z)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing(Section):
    """Periods in seconds: `control_dt` is `decimation` physics steps; the delays are the ranges of the training."""

    physics_dt: float
    decimation: int
    control_dt: float
    obs_delay_range_s: Range = (0.0, 0.0)
    action_delay_range_s: Range = (0.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.physics_dt <= 0 or self.decimation < 1:
            raise ContractError("policy contract: timing.physics_dt and timing.decimation must be positive")
        if not math.isclose(self.physics_dt * self.decimation, self.control_dt, rel_tol=1e-9):
            raise ContractError(
                f"policy contract: timing.control_dt {self.control_dt} s is not {self.decimation} physics steps "
                f"of {self.physics_dt} s"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action(Section):
    """How a raw action becomes a target: `clip_target(offset + scale * clip_raw(action))`, per joint, in this order.

    `joints` are the robot's joints; for type "actuator", the names of the model's actuators, and the target is its
    control signal.
    """

    joints: tuple[str, ...]
    type: Literal["position", "velocity", "torque", "actuator"]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    clip_raw: tuple[Range, ...] | None = None
    clip_target: tuple[Range, ...] | None = None
    filter: Literal["none"] = "none"
    last_action_definition: Literal["raw", "clipped"] = "clipped"

    def __post_init__(self) -> None:
        super().__post_init__()
        _unique("action", self.joints)
        for name in ("scale", "offset", "clip_raw", "clip_target"):
            _length(f"action.{name}", getattr(self, name), len(self.joints))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term(Section):
    """One named part of the observation: `offset + scale * clip(source)`, `(history, dim)` numbers of it.

    `source` says what is measured; `deploy.observation` lists those a robot supplies. `joints` names the entries, in
    order, where each belongs to a joint. `noise_train` is the half-width of the uniform noise of the training.
    """

    name: str
    source: str
    dim: int
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    unit: str = ""
    frame: str = ""
    joints: tuple[str, ...] = ()
    clip: Range | None = None
    history: int = 1
    noise_train: float = 0.0
    needs_estimator: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 1 or self.history < 1:
            raise ContractError(f"policy contract: observation term {self.name!r} needs a dim and history of 1 or more")
        _length(f"scale of term {self.name!r}", self.scale, self.dim)
        _length(f"offset of term {self.name!r}", self.offset, self.dim)
        if self.joints:
            _unique(f"joint of term {self.name!r}", self.joints)
            _length(f"joints of term {self.name!r}", self.joints, self.dim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation(Section):
    """The observation vector: the terms one after the other.

    Layout "term_major" puts a term's whole history, oldest first, before the next term; "frame_major" puts all terms
    of the oldest step before those of the next, and needs one history length. At the start of a run the history is
    filled with the first observation or with zeros. `gravity` is the direction of the gravity term of an upright robot.
    """

    terms: tuple[Term, ...]
    layout: Literal["term_major", "frame_major"] = "term_major"
    history_order: Literal["oldest_first"] = "oldest_first"
    history_fill: Literal["repeat_first", "zeros"] = "repeat_first"
    quaternion_order: Literal["wxyz", "xyzw"] = "wxyz"
    gravity: Literal["-z"] = "-z"

    def __post_init__(self) -> None:
        super().__post_init__()
        _unique("observation term", [term.name for term in self.terms])
        if self.layout == "frame_major" and len({term.history for term in self.terms}) > 1:
            raise ContractError("policy contract: layout frame_major needs the same history for every observation term")

    @property
    def dim(self) -> int:
        """Length D of the observation vector."""
        return sum(term.dim * term.history for term in self.terms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normaliser(Section):
    """Where the observation is normalised; mean and std `(D,)` of `count` samples are repeated here for display."""

    location: Literal["in_graph", "none"]
    count: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Section):
    """What an operator asks of the policy: named components with the ranges of the training, in `units`.

    `deadband` sets smaller magnitudes to zero; `slew` is the fastest change of a component, in its unit per second;
    after `timeout_s` without a new command, `default` is commanded. None is no limit.
    """

    name: str
    components: tuple[str, ...]
    units: tuple[str, ...]
    ranges: tuple[Range, ...]
    default: tuple[float, ...]
    deadband: float = 0.0
    slew: float | None = None
    timeout_s: float | None = None
    zero_behaviour: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("units", "ranges", "default"):
            _length(f"{name} of command {self.name!r}", getattr(self, name), len(self.components))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Safety(Section):
    """When the controller stops, and how it starts. None is no limit.

    `tilt_limit_rad` is between the base's z axis and up; `slew_limit` is per action joint, target units per second;
    `stale_s` the greatest age of a state; `overrun_limit` the number of periods that may be missed before one is kept;
    `fade_in_s` the time over which the targets move from the first measured position to the policy's.
    """

    tilt_limit_rad: float | None = None
    slew_limit: tuple[float, ...] | None = None
    stale_s: float = 0.1
    overrun_limit: int = 5
    fallback: Literal["damping"] = "damping"
    fade_in_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance(Section):
    """Where the policy comes from; `task` is by name, or the id of an environment of Gymnasium's."""

    task: str
    algorithm: str
    seed: int
    iteration: int
    git_commit: str
    git_dirty: bool
    config_sha256: str
    checkpoint_sha256: str
    versions: Mapping[str, str]
    environments: Literal["tasks", "gymnasium"] = added("tasks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Section):
    """What the policy was trained to bear, by name, and how it scored."""

    randomisation: Mapping[str, Range]
    evaluation: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden(Section):
    """The replay beside the file that every runtime must reproduce within the tolerances (absolute)."""

    file: str
    sha256: str
    steps: int
    action_tolerance: float
    target_tolerance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract(Section):
    """The whole document. `bundle_id`, `created_utc`, `graph` and `golden` are None until it is exported.

    Raises:
        ContractError: sections that disagree with each other, e.g. an action joint that the robot does not have.
    """

    policy: PolicyInfo
    robot: Robot
    timing: Timing
    action: Action
    observation: Observation
    normaliser: Normaliser
    commands: tuple[Command, ...]
    safety: Safety
    provenance: Provenance
    training: Training
    graph: Graph | None = None
    golden: Golden | None = None
    bundle_id: str | None = None
    created_utc: str | None = None
    schema_version: str = SCHEMA_VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {joint.name for joint in self.robot.joints}
        if self.action.type != "actuator" and set(self.action.joints) != known:
            odd = ", ".join(sorted(set(self.action.joints) ^ known))
            raise ContractError(f"policy contract: action joints and robot joints differ in {odd}")
        for term in self.observation.terms:
            if odd := [name for name in term.joints if name not in known]:
                raise ContractError(f"policy contract: observation term {term.name!r} names no robot joint {odd[0]!r}")
        _length("normaliser.mean", self.normaliser.mean, self.observation.dim)
        _length("normaliser.std", self.normaliser.std, self.observation.dim)
        _length("safety.slew_limit", self.safety.slew_limit, len(self.action.joints))

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, every float in the shortest form that reads back equal."""
        return json.dumps(plain(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @property
    def sha256(self) -> str:
        """Hex digest of the canonical text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def from_json(text: str) -> Contract:
    """Return the contract that a JSON text holds.

    Raises:
        ContractError: text that is not JSON, another major version, or a missing, unknown or ill-typed field, named.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"policy contract: not a JSON document ({error})") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    major = SCHEMA_VERSION.split(".")[0]
    if isinstance(version, str) and version.split(".")[0] != major:
        raise ContractError(
            f"policy contract: schema version {version}, and this program reads {major}.x; "
            "use the version of robolearn that exported it, or export it again"
        )
    return build(Contract, data)


def _refuse_constant(name: str) -> NoReturn:
    raise ContractError(f"policy contract: {name} is not a number that a contract may hold")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        _unique("field", [name for name, _ in pairs])
    return data


def _unique(kind: str, names: list[str] | tuple[str, ...]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ContractError(f"policy contract: {kind} {name!r} is listed twice")


def _length(what: str, values: tuple | None, expected: int) -> None:
    if values is not None and len(values) != expected:
        raise ContractError(f"policy contract: {what} has {len(values)} entries, not {expected}")
