"""Robot learning from a task file to a policy on the robot's controller.

    env = robolearn.make("Go2-Velocity-Flat", num_envs=4)
    policy = robolearn.load("runs/Go2-Velocity-Flat/<time>-ppo")
    obs, _ = env.reset()
    obs, reward, terminated, truncated, extras = env.step(policy.act(obs["policy"]))
    robolearn.export(policy.path, "policy.onnx")

Importing this needs nothing but Python: on a robot's computer neither torch nor MuJoCo is installed.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robolearn.loading import LoadedPolicy
    from tasks.env import Env

try:
    __version__ = version("robolearn")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0.0.0"

_NEIGHBOURS = ("tasks", "sim", "deploy")

__all__ = ["__version__", "export", "load", "make"]


def make(
    task: str, num_envs: int = 1, sim: str = "mujoco", device: str = "cpu", seed: int = 0, **overrides: Any
) -> "Env":
    """Return a task in N worlds.

    Args:
        task: a task by name, or ``path/to/file.py:Class``.
        num_envs: N.
        sim: a physics backend by name.
        device: where the worlds live, ``"cpu"`` or ``"cuda"``.
        seed: decides every random number.
        overrides: fields of the task's config to change; a dict, e.g. of weights, changes only the entries it names.

    Raises:
        UserError: a name or a field does not exist, a value is out of range, or the extra ``train`` is not installed.
    """
    with _needs_extra("make"):
        from sim.backends import make_simulation
        from tasks.env import Env
        from tasks.registry import make_task

        made = make_task(task, **overrides)
        simulation = make_simulation(sim, made.model(), num_envs, device, external_forces=made.external_forces)
        return Env(made, simulation, seed)


def load(path: "str | Path", device: str = "cpu") -> "LoadedPolicy":
    """Return the policy of a run directory, a checkpoint file or an exported ``.onnx`` file.

    Its ``act`` takes policy observations (N, D), as NumPy array or tensor, and returns actions (N, A) of the same kind.

    Raises:
        UserError: there is no such run or checkpoint, or it does not load, or the extra ``train`` is not installed.
        ContractError: the ONNX file is not one that robolearn exported.
    """
    with _needs_extra("load"):
        from robolearn import loading

        return loading.load(path, device)


def export(run: "str | Path", output: "str | Path | None" = None, *, steps: int = 256) -> Path:
    """Write the policy of a run as one ONNX file with its contract inside, verified or not at all; return its path.

    Args:
        run: a run directory or a checkpoint file.
        output: where to write; ``policy.onnx`` in the run directory if not given.
        steps: of simulation over which the file must equal torch; at least 200.

    Raises:
        UserError: as ``load``.
        ContractError: the policy cannot be written, or the file does not do what torch does.
    """
    with _needs_extra("export"):
        from robolearn import exporting

        return exporting.export(run, output, steps=steps)


@contextmanager
def _needs_extra(function: str) -> Iterator[None]:
    """Turn the absence of a package into the command that installs it."""
    from sim.errors import missing

    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("", "robolearn", *_NEIGHBOURS):
            raise
        raise missing(f"robolearn.{function}", package, "train") from None


def _check_neighbours() -> None:
    """Refuse to run with another package in the place of one of ours: ``tasks`` and ``sim`` are common names."""
    ours = Path(__file__).resolve().parent.parent
    for name in _NEIGHBOURS:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"robolearn is installed without its package {name!r}: install it again")
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
        found = Path(places[0]).resolve() if places else None
        if found is None or ours / name not in (found, found.parent):
            raise ImportError(
                f"robolearn needs its own package {name!r}, and Python finds {found} first: "
                "rename that, or start Python where it is not on sys.path"
            )


_check_neighbours()
