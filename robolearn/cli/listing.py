"""``robolearn list``."""

from collections.abc import Sequence
from importlib.util import find_spec

from robolearn.cli.extras import missing
from robolearn.cli.parser import Parser


def run(arguments: Sequence[str]) -> int:
    """List."""
    Parser("list", "List tasks, algorithms, robots, physics backends, and the extras that are missing.").parse(
        arguments
    )
    absent = missing()
    if all(find_spec(name) for name in ("gymnasium", "mujoco", "torch", "yaml", "pydantic")):
        for title, names in _names().items():
            print(title)
            for name in names:
                print(f"  {name}")
    print("missing extras" if absent else "missing extras: none")
    for extra, modules in absent.items():
        print(f'  {extra:<9} pip install "robolearn[{extra}]"  (lacks {", ".join(modules)})')
    return 0


def _names() -> dict[str, list[str]]:
    from robolearn.algorithms.registry import ALGORITHMS
    from robolearn.environments import GYMNASIUM, SIMS
    from robolearn.presets import PRESETS
    from sim import robots
    from tasks import registry

    algorithms = list(ALGORITHMS)
    presets = {task: [a for a in algorithms if task in PRESETS.get(a, {})] for task in registry.names()}
    return {
        "tasks (and path/to/file.py:Class)": [
            f"{task:<24} {'preset: ' + ', '.join(tuned) if tuned else ''}".rstrip() for task, tuned in presets.items()
        ],
        "algorithms": algorithms,
        "robots (and the path of an MJCF or URDF file)": list(robots.names()),
        "backends (--sim)": [
            *(sim for sim in SIMS if sim != GYMNASIUM),
            f"{GYMNASIUM:<24} TASK is an id of Gymnasium, or module:Id-v0",
        ],
    }
