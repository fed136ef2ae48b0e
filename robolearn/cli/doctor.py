"""``robolearn doctor``."""

import importlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from robolearn.cli.extras import EXTRAS, missing
from robolearn.cli.parser import Parser

PACKAGES = {"cv2": "opencv-python-headless", "yaml": "pyyaml", "rsl_rl": "rsl-rl-lib", "warp": "warp-lang"}
"""The packages of modules whose names differ from theirs."""


def run(arguments: Sequence[str]) -> int:
    """Examine."""
    Parser("doctor", "Say what is installed, what works here, and what to install.").parse(arguments)
    print(f"robolearn {_version('robolearn')} on Python {platform.python_version()}, {platform.platform()}")
    print(f"{_cores()} CPU cores")
    print("packages")
    for modules in (("numpy", "onnxruntime"), *EXTRAS.values()):
        for module in modules:
            if find_spec(module) is not None:
                print(f"  {module:<20} {_version(PACKAGES.get(module, module.replace('_', '-')))}")
    print("what works")
    for what, reason in _checks():
        print(f"  {what:<20} {reason or 'yes'}")
    absent = missing()
    print("nothing to install" if not absent else "to install")
    for extra, modules in absent.items():
        print(f'  pip install "robolearn[{extra}]"  (brings {", ".join(modules)})')
    return 0


def _checks() -> Iterator[tuple[str, str | None]]:
    """Yield each ability, and why it is absent or None."""
    yield "deploy", _importable("onnxruntime")
    yield "simulation", _importable("mujoco.batch")
    yield "training", _importable("torch", "mujoco", "gymnasium", "pydantic", "yaml", "tensorboard")
    yield "CUDA", _reason(_cuda)
    yield "pictures and video", _reason(_rendering)
    yield "web viewer", _importable("viser", "mjviser")
    yield "window viewer", _display()


def _importable(*modules: str) -> str | None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken package may raise anything
            return f"no: {' '.join(str(error).split()) or type(error).__name__}"
    return None


def _reason(check: Callable[[], str | None]) -> str | None:
    try:
        reason = check()
    except ModuleNotFoundError as error:
        reason = str(error)
    return None if reason is None else f"no: {reason}"


def _cuda() -> str | None:
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


def _rendering() -> str | None:
    from sim.render import why_unavailable

    return why_unavailable()


def _display() -> str | None:
    if platform.system() != "Linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return None
    return "no: there is no display"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown version"
