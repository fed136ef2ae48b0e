"""The command line: ``robolearn COMMAND ...``.

A command is a module with ``run(arguments) -> exit status``, imported only when it is asked for, so that ``deploy``
needs no more than numpy and onnxruntime. Exit status: 0 done, 1 a run that failed, 2 a wrong request, 130 interrupted.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from deploy.errors import ContractError
from robolearn.cli.extras import extra_of
from robolearn.cli.parser import Failure
from robolearn.interrupts import interrupts
from sim.errors import UserError, unknown

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("listing", "tasks, algorithms, robots, backends, and which extras are missing"),
    "train": ("train", "train a policy, or go on training it"),
    "eval": ("evaluate", "judge a run or an exported policy over whole episodes"),
    "play": ("play", "watch a policy: a video file, the browser or MuJoCo's window"),
    "export": ("export", "write a run's policy as one verified ONNX file"),
    "deploy": ("deploy", "run an exported policy on a robot's controller"),
    "import": ("import_", "make a run of a policy that Stable-Baselines3 trained elsewhere"),
    "bench": ("bench", "rates of simulation and learning, with the raw engine beside them"),
    "doctor": ("doctor", "what is installed, what works, what to install"),
    "demo": ("demo", "train, export, verify and evaluate a walking quadruped"),
}
"""The module in this package and the summary of each command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # OpenMP's threads spin for milliseconds before they sleep, and keep the physics and everybody else from the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    prefix = f"robolearn {name}" if name in COMMANDS else "robolearn"
    try:
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        with interrupts() as interrupted:  # raised inside an import, it may be lost or come out as another error
            command = importlib.import_module(f"robolearn.cli.{COMMANDS[name][0]}")
        if interrupted.is_set():
            raise KeyboardInterrupt
        return command.run(rest)
    except SystemExit as done:  # argparse has printed the help
        return int(done.code or 0)
    except Failure as error:
        return _say(1, prefix, str(error))
    except (UserError, ContractError) as error:
        return _say(2, prefix, str(error))
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        return _say(2, prefix, f'needs {error.name}: pip install "robolearn[{extra}]"')
    except KeyboardInterrupt as interrupt:
        return _say(130, prefix, str(interrupt) or "interrupted")
    except BrokenPipeError:  # whoever read the output, e.g. head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _say(status: int, prefix: str, message: str) -> int:
    print(f"{prefix}: {' '.join(message.split())}", file=sys.stderr)
    return status


def _usage() -> str:
    lines = [
        "usage: robolearn COMMAND ...",
        "",
        "Robot learning from a task file to a policy on the robot's controller.",
        "",
    ]
    lines += [f"  {name:<8} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join([*lines, "", "robolearn COMMAND --help says more of each."])
