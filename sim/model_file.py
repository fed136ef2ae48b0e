"""Reading a model file, MJCF or URDF, with mistakes in it reported as the user's."""

from pathlib import Path

import mujoco

from sim.errors import UserError


def read_spec(path: str | Path) -> mujoco.MjSpec:
    """Parse an MJCF or URDF file into an editable spec.

    Raises:
        UserError: no such file, or MuJoCo cannot parse it; the text carries the file and MuJoCo's reason.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"no robot file {str(path)!r}")
    # MuJoCo picks its parser by the suffix and knows only these two, in lower case.
    alias = file.with_suffix(".urdf" if file.suffix.lower() == ".urdf" else ".xml")
    try:
        if alias == file:
            return mujoco.MjSpec.from_file(str(file))
        return mujoco.MjSpec.from_file(str(alias), include={str(alias): file.read_bytes()})
    except (ValueError, OSError) as error:
        raise _invalid(path, error) from None


def compile_spec(spec: mujoco.MjSpec, path: str | Path) -> mujoco.MjModel:
    """Compile a spec that was read from ``path``.

    Raises:
        UserError: MuJoCo cannot compile it; the text carries the file and MuJoCo's reason.
    """
    try:
        return spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise _invalid(path, error) from None


def _invalid(path: str | Path, error: Exception) -> UserError:
    return UserError(f"MuJoCo cannot read {str(path)!r}: {' '.join(str(error).split())}")
