"""The contract as a table that an engineer can check against the robot in a minute."""

from collections.abc import Sequence

from deploy.contract import Contract, Range


def describe(contract: Contract) -> str:
    """Return the contract as readable text."""
    sections = (_heading, _observation, _action, _held, _commands, _limits)
    return "\n\n".join(text for section in sections if (text := section(contract)))


def _heading(contract: Contract) -> str:
    provenance, timing, golden = contract.provenance, contract.timing, contract.golden
    rows = [
        ("task", provenance.task),
        ("robot", " ".join(filter(None, (contract.robot.name, contract.robot.variant)))),
        ("policy", f"{contract.policy.kind}, opset {contract.policy.opset}, from {contract.policy.producer}"),
        ("trained", f"{provenance.algorithm}, seed {provenance.seed}, iteration {provenance.iteration}"),
        ("commit", f"{provenance.git_commit}{' with changes' if provenance.git_dirty else ''}"),
        ("rate", f"{1 / timing.control_dt:.6g} Hz, {timing.decimation} x {timing.physics_dt:g} s"),
        (
            "delay trained",
            f"observation {_range(timing.obs_delay_range_s)} s, action {_range(timing.action_delay_range_s)} s",
        ),
        ("normaliser", f"{contract.normaliser.location}, {contract.normaliser.count} samples"),
        ("IMU", f"frame {contract.robot.imu_frame or '-'}, mounting wxyz {_numbers(contract.robot.imu_mounting)}"),
        ("golden replay", f"{golden.file}, {golden.steps} steps" if golden else "none"),
        *((f"trained with {name}", _range(limits)) for name, limits in contract.training.randomisation.items()),
        *((f"scored {name}", f"{value:.4g}") for name, value in contract.training.evaluation.items()),
        ("contract", f"schema {contract.schema_version}, sha256 {contract.sha256[:16]}"),
    ]
    return _columns(rows)


def _observation(contract: Contract) -> str:
    rows = [("observation", "at", "dim", "history", "unit", "frame", "scale", "offset", "source")]
    start = 0
    for term in contract.observation.terms:
        rows.append(
            (
                term.name,
                str(start),
                str(term.dim),
                str(term.history),
                term.unit or "-",
                term.frame or "-",
                _numbers(term.scale),
                _numbers(term.offset),
                term.source + (" (needs an estimator)" if term.needs_estimator else ""),
            )
        )
        start += term.dim * (term.history if contract.observation.layout == "term_major" else 1)
    observation = contract.observation
    layout = f"{observation.layout}, {observation.history_order}, {observation.history_fill}"
    return f"{_columns(rows)}\n{layout}, quaternions {observation.quaternion_order}"


def _action(contract: Contract) -> str:
    action = contract.action
    known = {joint.name: joint for joint in contract.robot.joints}
    rows = [(f"{action.type} of", "scale", "offset", "clip", "target", "default", "kp", "kd", "limits", "torque")]
    for i, name in enumerate(action.joints):
        joint = known.get(name)
        row = (
            name,
            f"{action.scale[i]:g}",
            f"{action.offset[i]:g}",
            _range(action.clip_raw[i]) if action.clip_raw else "-",
            _range(action.clip_target[i]) if action.clip_target else "-",
        )
        if joint is None:
            rows.append((*row, "-", "-", "-", "-", "-"))
            continue
        limits = f"{_number(joint.lower)} .. {_number(joint.upper)} {joint.unit}"
        rows.append(
            (*row, f"{joint.default_pos:g}", f"{joint.kp:g}", f"{joint.kd:g}", limits, _number(joint.torque_limit))
        )
    return f"{_columns(rows)}\nlast action: {action.last_action_definition}"


def _held(contract: Contract) -> str:
    held = contract.robot.uncontrolled
    if not held:
        return ""
    rows = [("held", "position", "kp", "kd")]
    rows += [(joint.name, f"{joint.hold_pos:g}", f"{joint.kp:g}", f"{joint.kd:g}") for joint in held]
    return _columns(rows)


def _commands(contract: Contract) -> str:
    if not contract.commands:
        return ""
    rows = [("command", "component", "unit", "range", "default")]
    for command in contract.commands:
        for i, component in enumerate(command.components):
            unit, limits, default = command.units[i], command.ranges[i], command.default[i]
            rows.append((command.name, component, unit, _range(limits), f"{default:g}"))
    return _columns(rows)


def _limits(contract: Contract) -> str:
    safety = contract.safety
    return _columns(
        [
            ("tilt limit", f"{_number(safety.tilt_limit_rad)} rad"),
            ("stale after", f"{safety.stale_s:g} s"),
            ("missed periods", str(safety.overrun_limit)),
            ("slew limit", "-" if safety.slew_limit is None else _numbers(safety.slew_limit)),
            ("fade-in", f"{safety.fade_in_s:g} s"),
            ("then", safety.fallback),
        ]
    )


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _numbers(values: Sequence[float]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    return " ".join(f"{value:g}" for value in values)


def _range(limits: Range) -> str:
    return f"{limits[0]:g} .. {limits[1]:g}"
