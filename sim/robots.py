"""Finding a robot: a bundled one, a user's own MJCF or URDF file, or one of the mujoco-menagerie package."""

import importlib
from pathlib import Path

from sim.errors import UserError, unknown
from sim.model_file import compile_spec, read_spec
from sim.robot import Robot

MODELS = Path(__file__).parent / "models"
SUFFIXES = (".xml", ".mjcf", ".urdf")
MENAGERIE = "menagerie:"


def names() -> tuple[str, ...]:
    """Return the names of the bundled robots, sorted."""
    return tuple(sorted(file.stem for file in MODELS.glob("*.xml")))


def load_robot(name_or_path: str) -> Robot:
    """Return the robot of that name, or described by that file.

    Args:
        name_or_path: a bundled robot (``names()``); the path of an MJCF (``.xml``, ``.mjcf``) or URDF (``.urdf``) file;
            or ``menagerie:NAME`` for a robot of the package mujoco-menagerie, which downloads it on first use.

    Raises:
        UserError: no such robot or file, a file that MuJoCo cannot compile, or a menagerie that cannot be reached.
    """
    if name_or_path.startswith(MENAGERIE):
        return _describe(name_or_path, _menagerie_file(name_or_path.removeprefix(MENAGERIE)))
    if name_or_path.lower().endswith(SUFFIXES):
        path = Path(name_or_path).expanduser()
        return _describe(path.stem, path)
    if name_or_path not in names():
        raise unknown("robot", name_or_path, names())
    return _describe(name_or_path, MODELS / f"{name_or_path}.xml")


def _describe(name: str, path: Path) -> Robot:
    return Robot.from_model(name, path, compile_spec(read_spec(path), path))


def _menagerie_file(name: str) -> Path:
    """Return the robot's own MJCF, without its scene, from the package's cache or from ``MENAGERIE_ROOT``."""
    try:
        menagerie = importlib.import_module("mujoco_menagerie")
    except ImportError:
        raise UserError(f"robot '{MENAGERIE}{name}' needs mujoco-menagerie: pip install mujoco-menagerie") from None
    if name not in menagerie.names():
        raise unknown("menagerie robot", name, menagerie.names())
    entry = menagerie.get(name)
    try:
        return entry.xml(entry.default_model)
    except (menagerie.MenagerieError, OSError) as error:
        hint = "a checkout of mujoco_menagerie named by MENAGERIE_ROOT is used instead of a download"
        raise UserError(f"cannot get '{MENAGERIE}{name}': {' '.join(str(error).split())}; {hint}") from None
