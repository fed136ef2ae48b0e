"""``robolearn export``."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from deploy.errors import ContractError
from robolearn import run as runs
from robolearn.cli.parser import Failure, Parser, failures
from robolearn.exporting import export


def run(arguments: Sequence[str]) -> int:
    """Export."""
    parser = Parser(
        "export", "Write a run's policy as one ONNX file, after its output has equalled torch's step by step."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory, or a checkpoint in one")
    parser.add_argument(
        "--output", metavar="FILE.onnx", type=Path, help="where to; policy.onnx in the run if not given"
    )
    options = parser.parse(arguments)
    runs.open(options.run)
    try:
        with failures():
            path = export(options.run, options.output)
    except ContractError as error:
        raise Failure(str(error)) from error
    print(f"{path}  (verified against torch)")
    print(f"robolearn eval {shlex.quote(str(path))}")
    print(f"robolearn deploy {shlex.quote(str(path))} --robot sim")
    return 0
