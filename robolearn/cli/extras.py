"""Which optional packages are here, and how to get the ones that are not."""

from importlib.util import find_spec

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": (
        "cv2", "gymnasium", "matplotlib", "mujoco", "onnx", "onnxscript", "pydantic", "rich", "tensorboard", "torch",
        "tyro", "yaml",
    ),
    "viewer": ("mjviser", "viser"),
    "robotics": ("gymnasium_robotics",),
    "interop": ("rsl_rl", "skrl", "stable_baselines3"),
    "notebook": ("ipykernel", "jupytext", "nbclient", "nbformat"),
}  # fmt: skip
"""The modules that each extra of ``pip install "robolearn[EXTRA]"`` brings."""


def extra_of(module: str | None) -> str | None:
    """Return the extra that brings a module, or None if none does."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def missing() -> dict[str, list[str]]:
    """Return the modules that are not installed, for each extra that lacks some."""
    absent = {extra: [m for m in modules if find_spec(m) is None] for extra, modules in EXTRAS.items()}
    return {extra: modules for extra, modules in absent.items() if modules}
