"""Finding a robot: one bundled with the project, a user's own MJCF or URDF file, or one of the mujoco-menagerie package."""

from pathlib import Path

from sim.errors import unknown
from sim.model_file import compile_spec, read_spec
from sim.robot import Robot

MODELS = Path(__file__).parent / "models"
SUFFIXES = (".xml", ".mjcf", ".urdf")


def names() -> tuple[str, ...]:
    """Return the names of the bundled robots, sorted."""
    return tuple(sorted(file.stem for file in MODELS.glob("*.xml")))


def load_robot(name_or_path: str) -> Robot:
    """Return the robot of that name, or described by that file.

    Args:
        name_or_path: a bundled robot (``names()``), or the path of an MJCF (``.xml``, ``.mjcf``) or URDF (``.urdf``) file.

    Raises:
        UserError: no such robot or file, or a file that MuJoCo cannot compile.
    """
    if name_or_path.lower().endswith(SUFFIXES):
        path = Path(name_or_path).expanduser()
        return _describe(path.stem, path)
    if name_or_path not in names():
        raise unknown("robot", name_or_path, names())
    return _describe(name_or_path, MODELS / f"{name_or_path}.xml")


def _describe(name: str, path: Path) -> Robot:
    return Robot.from_model(name, path, compile_spec(read_spec(path), path))
