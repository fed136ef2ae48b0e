"""Who may import whom, what the robot's computer needs, and how files are named and sized."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "sim": {"tasks", "robolearn", "deploy"},
    "tasks": {"robolearn", "deploy"},
    "deploy": {"sim", "tasks", "robolearn"},
    "robolearn": set(),
}
RUNTIME = set(sys.stdlib_module_names) | {"deploy", "numpy", "onnxruntime"}
EXPORTER = RUNTIME | {"torch", "onnx", "onnxscript"}
FILES = sorted(path for package in FORBIDDEN for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def imported(source: str) -> Iterator[str]:
    """Yield the dotted name of everything a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def mistakes(name: str, source: str) -> list[str]:
    """Return the imports that the file ``name`` (from the root of the checkout) must not have."""
    package = name.split("/")[0]
    wrong = []
    for target in imported(source):
        top = target.split(".")[0]
        allowed = EXPORTER if name == "deploy/exporter.py" else RUNTIME
        own_exporter = package == "deploy" and target.startswith("deploy.exporter")
        if top in FORBIDDEN[package] or (package == "deploy" and top not in allowed) or own_exporter:
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_run_in_one_direction(path: Path):
    assert mistakes(str(path.relative_to(ROOT)), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("sim/a.py", "import tasks.env", ["tasks.env"]),
        ("sim/a.py", "def f():\n    from robolearn import run", ["robolearn.run"]),
        ("sim/a.py", "from sim import tasks", []),
        ("tasks/a.py", "import sim, numpy, torch", []),
        ("tasks/b/c.py", "if True:\n    import deploy", ["deploy"]),
        ("deploy/a.py", "import numpy as np, onnxruntime, json, deploy.contract", []),
        ("deploy/a.py", "from torch import nn", ["torch.nn"]),
        ("deploy/a.py", "import importlib\nimportlib.import_module('mujoco')", ["mujoco"]),
        ("deploy/a.py", "from deploy import exporter", ["deploy.exporter"]),
        ("deploy/exporter.py", "import torch, onnx", []),
        ("deploy/exporter.py", "import mujoco", ["mujoco"]),
        ("robolearn/a.py", "import sim, tasks, deploy.exporter", []),
    ],
)
def test_the_check_sees_a_wrong_import(name: str, source: str, wrong: list[str]):
    assert mistakes(name, source) == wrong


def test_the_robots_computer_loads_neither_torch_nor_mujoco():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in FILES
        if path.is_relative_to(ROOT / "deploy") and path.name not in ("exporter.py", "__init__.py")
    ]
    assert "deploy.runtime" in modules
    unwanted = "{'torch', 'mujoco', 'onnx', 'sim', 'tasks', 'robolearn'} & set(sys.modules)"
    program = f"import sys, {', '.join(modules)}; print(sorted({unwanted}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_are_small_and_named_for_their_content(path: Path):
    assert path.stem not in ("utils", "util", "helpers", "helper", "misc", "common")
    assert len(path.read_text().splitlines()) <= 500
