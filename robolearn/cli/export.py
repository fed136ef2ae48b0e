"""``robolearn export``."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from deploy.errors import ContractError
from deploy.runtime import read_contract
from robolearn import run as runs
from robolearn.cli.parser import Failure, Parser
from robolearn.exporting import export
from sim.errors import UserError


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
    if options.output is not None and options.output.suffix != ".onnx":
        raise UserError(f"--output: expected a file name that ends in .onnx, not {str(options.output)!r}")
    opened = runs.open(options.run)
    try:
        path = export(opened.checkpoint or opened.path, options.output)
        contract = read_contract(path)
    except ContractError as error:
        raise Failure(str(error)) from error
    iteration = contract.provenance.iteration
    untrained = "" if iteration else ": untrained"
    print(f"the policy of {opened.path} after iteration {iteration}{untrained}")
    print(f"{path}  (verified against torch)")
    print(f"robolearn eval {shlex.quote(str(path))}")
    if contract.action.type == "position":
        assert contract.golden is not None
        print(f"robolearn deploy {shlex.quote(str(path))} --robot sim")
        print(f"to a robot go both {path.name} and {contract.golden.file}")
    return 0
