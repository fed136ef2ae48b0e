"""Reading a model file, MJCF or URDF, with mistakes in it reported as the user's."""

from pathlib import Path

import mujoco

from sim.errors import UserError


def read_spec(path: str | Path) -> mujoco.MjSpec:
    """Parse an MJCF or URDF file into an editable spec.

    Raises:
        UserError: no such file, or MuJoCo cannot parse it; the text carries the file and MuJoCo's reason.
    """
    if not Path(path).is_file():
        raise UserError(f"no robot file {str(path)!r}")
    try:
        return mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
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
