"""The worlds of a Gymnasium environment shared out over threads or processes."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium
import numpy as np

from sim.errors import UserError
from tasks.adapters.gymnasium_make import shut
from tasks.adapters.gymnasium_worlds import Recipe, Rows, Worlds
from tasks.vector_env import EnvironmentFailed

_log = logging.getLogger(__name__)

_DEATHS, _WITHIN = 3, 1000
"""A worker that dies so often within so many steps is given up."""


class Stepper(Protocol):
    """Steps all worlds; the same calls as of `Worlds`."""

    restarts: int
    """Times that worlds had to be made anew."""

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
        """Mark in ``mask`` (N,) also the worlds that had to be made anew, and so begin an episode as well."""
        ...

    def step(self, action: np.ndarray, last: np.ndarray) -> Rows: ...

    def close(self) -> None: ...


class Serial(Worlds):
    """All worlds in the calling thread."""

    restarts = 0


class Threads:
    """Groups of worlds in threads: simulators that let go of Python's lock run beside each other."""

    restarts = 0

    def __init__(self, recipe: Recipe, count: int, workers: int, made: Sequence[gymnasium.Env]):
        self._slices = shares(count, workers)
        self._groups = [
            Worlds(recipe, part.stop - part.start, part.start, made if part.start == 0 else ()) for part in self._slices
        ]
        self._pool = ThreadPoolExecutor(len(self._groups))

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
        parts = self._pool.map(lambda group, part: group.reset(mask[part], seeds[part]), self._groups, self._slices)
        return np.concatenate(list(parts))

    def step(self, action: np.ndarray, last: np.ndarray) -> Rows:
        parts = self._pool.map(lambda group, part: group.step(action[part], last[part]), self._groups, self._slices)
        return Rows.joined(list(parts))

    def close(self) -> None:
        self._pool.shutdown()
        for group in self._groups:
            group.close()


class Processes:
    """Groups of worlds in processes. One that dies is begun anew; the rows of its worlds are not valid then."""

    def __init__(self, recipe: Recipe, count: int, workers: int, made: Sequence[gymnasium.Env] = ()):
        self._recipe, self._made = recipe, made
        # A forked process knows the environments that the program has registered; one begun afresh would not.
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self._slices = shares(count, workers)
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._seeds = np.random.default_rng()
        self._deaths: list[list[int]] = [[] for _ in self._slices]
        self._steps = 0
        self.restarts = 0
        for part in self._slices:
            connection, process = self._begin(part)
            self._connections.append(connection)
            self._processes.append(process)
        try:
            for i in range(len(self._slices)):
                self._answer(i)
        except EnvironmentFailed:
            self.close()
            raise
        except (EOFError, OSError):
            self.close()
            raise EnvironmentFailed(f"a process for {recipe.env_id} ended before its worlds were made") from None

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process in self._processes]

    def reset(self, mask: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
        given = [seed for seed in seeds if seed is not None]
        if given:
            self._seeds = np.random.default_rng(given)
        answers = self._ask(lambda part: ("reset", mask[part], seeds[part]))
        for i, part in enumerate(self._slices):
            if answers[i] is None:
                answers[i] = self._restarted(i, seeds[part])
                mask[part] = True
        return np.concatenate(answers)

    def step(self, action: np.ndarray, last: np.ndarray) -> Rows:
        self._steps += 1
        answers = self._ask(lambda part: ("step", action[part], last[part]))
        infos = len(self._recipe.infos)
        nothing = [None] * len(action)
        for i, part in enumerate(self._slices):
            if answers[i] is None:
                answers[i] = Rows.first(self._restarted(i, nothing[part]), infos)
        return Rows.joined(answers)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()  # which ends its process
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
        for env in self._made:
            shut(env, self._recipe.env_id)

    def _begin(self, part: slice) -> tuple[Connection, Any]:
        ours, theirs = self._context.Pipe()
        inherited = [*self._connections, ours]
        arguments = (theirs, inherited, self._recipe, part.stop - part.start, part.start)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return ours, process

    def _ask(self, question: Any) -> list[Any]:
        """Return the answer of each process; None of one that has died."""
        alive = []
        for connection, part in zip(self._connections, self._slices, strict=True):
            try:
                connection.send(question(part))
                alive.append(True)
            except OSError:
                alive.append(False)
        answers: list[Any] = []
        failures: list[EnvironmentFailed] = []
        for i, sent in enumerate(alive):
            try:
                answers.append(self._answer(i) if sent else None)
            except (EOFError, OSError):
                answers.append(None)
            except EnvironmentFailed as error:  # once the others' answers are read, that none be taken for a later one
                failures.append(error)
                answers.append(None)
        if failures:
            raise failures[0]
        return answers

    def _answer(self, i: int) -> Any:
        failed, answer = self._connections[i].recv()
        if failed:
            raise EnvironmentFailed(answer)
        return answer

    def _restarted(self, i: int, seeds: Sequence[int | None]) -> np.ndarray:
        """Begin a process that has died anew and return the first observations of its worlds; None draws a seed."""
        process, part, deaths = self._processes[i], self._slices[i], self._deaths[i]
        process.join(5.0)
        code = process.exitcode
        reason = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
        few = f"world {part.start}" if part.stop - part.start == 1 else f"worlds {part.start} to {part.stop - 1}"
        worlds = f"{few} of {self._recipe.env_id}"
        deaths.append(self._steps)
        if len(deaths) >= _DEATHS and self._steps - deaths[-_DEATHS] < _WITHIN:
            memory = "is there memory for so many? " if code == -signal.SIGKILL else ""
            raise EnvironmentFailed(f"the process of {worlds} died {_DEATHS} times within {_WITHIN} steps ({reason}); "
                                    f"{memory}--env.worlds serial shows what happens")  # fmt: skip
        _log.warning("the process of %s died (%s) and is begun anew; their episodes are not counted", worlds, reason)
        self._connections[i].close()
        try:
            self._connections[i], self._processes[i] = self._begin(part)
            self._answer(i)
            n = part.stop - part.start
            drawn = self._seeds.integers(2**31, size=n).tolist()
            given = [own if seed is None else seed for seed, own in zip(seeds, drawn, strict=True)]
            self._connections[i].send(("reset", np.ones(n, bool), given))
            first = self._answer(i)
        except (EOFError, OSError):
            raise EnvironmentFailed(f"the process of {worlds} died ({reason}) and cannot be begun anew") from None
        self.restarts += 1
        return first


def _serve(connection: Connection, inherited: Sequence[Connection], recipe: Recipe, count: int, first: int) -> None:
    """Answer questions about worlds until the other end is closed."""
    # The one who asks decides when it is over; an interrupt from the keyboard reaches every process at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # else the end of the asking process would not be seen here
        other.close()
    try:
        worlds = Worlds(recipe, count, first)
        connection.send((False, None))
        while True:
            method, *arguments = connection.recv()
            try:
                connection.send((False, getattr(worlds, method)(*arguments)))
            except EnvironmentFailed as error:
                connection.send((True, str(error)))
    except UserError as error:
        connection.send((True, str(error)))
    except (EOFError, OSError):
        pass


def shares(count: int, workers: int) -> list[slice]:
    """Return how N worlds are shared out over at most so many workers, 0 for one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(count, workers or cores)
    ends = [round(count * i / workers) for i in range(workers + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def make_stepper(way: str, recipe: Recipe, count: int, workers: int, made: Sequence[gymnasium.Env]) -> Stepper:
    """Return what steps N worlds in one of the ways of `GymnasiumConfig.worlds`.

    Raises:
        UserError: a world cannot be made.
    """
    if way == "auto":
        way = "serial" if count == 1 else "processes"
    if way == "serial":
        return Serial(recipe, count, made=made)
    if way == "threads":
        return Threads(recipe, count, workers, made)
    return Processes(recipe, count, workers, made)
