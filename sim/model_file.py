"""Reading a model file, MJCF or URDF, with mistakes in it reported as the user's."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mujoco

from sim.errors import UserError

_log = logging.getLogger(__name__)


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
        with _warnings_logged(path):
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
        with _warnings_logged(path):
            return spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise _invalid(path, error) from None


@contextmanager
def _warnings_logged(path: str | Path) -> Iterator[None]:
    """Send what the parser and the compiler warn of to the log: most of it is about files that are not the user's."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        _log.info("%s: %s", path, warning.message)


def _invalid(path: str | Path, error: Exception) -> UserError:
    return UserError(f"MuJoCo cannot read {str(path)!r}: {' '.join(str(error).split())}")
