"""Times contestants side by side, so that whatever else the machine does hits all of them alike.

A contestant is a callable: told a number of rounds it runs them and returns the seconds each took.
It lives as long as the comparison, so start-up is never on the clock. Rounds come in short blocks,
and each block is set against the baseline's blocks just before and just after it:

    bare  pfl1  bare  pfl2  bare  local1  bare ...      a cycle; the next one has the reverse order

A ratio is the median over those comparisons: a change of the machine's pace from one minute to the
next cancels out, and a block that something else disturbed is only one among many.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TextIO

ROOT = Path(__file__).parent.parent
Contestant = Callable[[int], list[float]]


class Turns:
    """The contestant's end of the line: runs a training loop in blocks of rounds, and times them.

    The loop calls `lap()` before every round (a loop that belongs to a framework: from its hook
    after every round) and stops when it returns False. Between two blocks `lap` reports the last
    one and waits for the next request, off the clock.
    """

    def __init__(self, receive: Callable[[], int], report: Callable[[list[float]], None]) -> None:
        self._receive, self._report = receive, report
        self._left = 0
        self._started = 0.0
        self._seconds: list[float] = []

    def lap(self) -> bool:
        """Note the round that has ended; wait if it was its block's last. False: no more rounds."""
        now = time.perf_counter()
        if self._left:
            self._seconds.append(now - self._started)
            self._left -= 1
        if not self._left:
            if self._seconds:
                self._report(self._seconds)
                self._seconds = []
            self._left = self._receive()
            now = time.perf_counter()
        self._started = now
        return self._left > 0


class Pipe:
    """Requests from stdin, answers to what was stdout: other output now goes to stderr.

    `loss`, evaluated after each block, is the proof that its rounds did learn.
    """

    def __init__(self, loss: Callable[[], float]) -> None:
        self._loss = loss
        self._answers: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def receive(self) -> int:
        """Rounds to run next; 0 when the other end has gone."""
        return int(sys.stdin.readline() or 0)

    def report(self, seconds: list[float]) -> None:
        """Answer with a line of JSON."""
        self._answers.write(json.dumps({"seconds": seconds, "loss": self._loss()}) + "\n")


def take_turns(a_round: Callable[[], object], loss: Callable[[], float]) -> None:
    """Be a contestant: run a round as often as is asked for, until the other end has gone."""
    pipe = Pipe(loss)
    turns = Turns(pipe.receive, pipe.report)
    while turns.lap():
        a_round()


class Child:
    """A contestant in processes of its own, one for each of `envs`; the first one is talked to.

    Each runs on one thread and on the CPU. `losses` has the training loss after each block, by the
    number of rounds run until then.
    Raises `RuntimeError` when the child ends before it has answered; what it said is on stderr.
    """

    def __init__(self, command: Sequence[str], envs: Sequence[Mapping[str, str]] = ({},)) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.losses: dict[int, float] = {}
        self._rounds = 0
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, **one_thread, **env},
                text=True,
            )
            for rank, env in enumerate(envs)
        ]

    def __call__(self, rounds: int) -> list[float]:
        """Run `rounds` rounds; the seconds of each."""
        process = self._processes[0]
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{rounds}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{process.args!r} ended with exit code {process.wait()}")
        answer = json.loads(line)
        self._rounds += rounds
        self.losses[self._rounds] = float(answer["loss"])
        return [float(seconds) for seconds in answer["seconds"]]

    def peak_memory_mb(self) -> float:
        """Peak resident memory so far of the child's process with the most, MB; Linux only."""
        statuses = [Path(f"/proc/{p.pid}/status").read_text() for p in self._processes]
        return max(int(s.split("VmHWM:")[1].split()[0]) for s in statuses) / 1000

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes: the first at the end of its input, the others with it."""
        if self._processes[0].stdin is not None:
            with suppress(BrokenPipeError):
                self._processes[0].stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class AtOnce:
    """Children that run at the same time, each on rounds of its own: the machine's limit.

    The seconds of a round are what it took divided by the number of children, as if an engine had
    shared one round among them without any cost.
    """

    def __init__(self, *children: Contestant) -> None:
        self._children = children

    def __call__(self, rounds: int) -> list[float]:
        """Run `rounds` rounds in every child; the seconds of each, shared."""
        with ThreadPoolExecutor(len(self._children)) as pool:
            all_seconds = list(pool.map(lambda child: child(rounds), self._children))
        return [sum(each) / len(each) ** 2 for each in zip(*all_seconds, strict=True)]


def compare(
    contestants: Mapping[str, Contestant],
    baseline: str = "bare",
    cycles: int = 10,
    rounds: int = 2,
    warmup: int = 2,
) -> dict[str, dict[str, Any]]:
    """Run all contestants in turns, `cycles` (at least 2) blocks of `rounds` rounds each.

    Returns for each: `seconds` (a round; median), `fastest`, `rounds` timed, and against `baseline`
    `ratio` (median over the blocks), its `quartiles`, and `ratio_fastest`, that of the fastest
    rounds: the one to read when the machine was never quiet for long.
    """
    for run in contestants.values():
        run(warmup)
    others = [name for name in contestants if name != baseline]
    timed: dict[str, list[float]] = {name: [] for name in contestants}
    ratios: dict[str, list[float]] = {name: [] for name in others}
    before = contestants[baseline](rounds)
    timed[baseline] += before
    for cycle in range(cycles):
        for name in others if cycle % 2 == 0 else reversed(others):
            block = contestants[name](rounds)
            after = contestants[baseline](rounds)
            ratios[name].append(median(block) / median(before + after))
            timed[name] += block
            timed[baseline] += after
            before = after
    result: dict[str, dict[str, Any]] = {}
    for name, seconds in timed.items():
        result[name] = {
            "seconds": round(median(seconds), 4),
            "fastest": round(min(seconds), 4),
            "rounds": len(seconds),
        }
        if name != baseline:
            low, middle, high = quantiles(ratios[name], n=4, method="inclusive")
            result[name] |= {
                "ratio": round(middle, 3),
                "quartiles": [round(low, 3), round(high, 3)],
                "ratio_fastest": round(min(seconds) / min(timed[baseline]), 3),
            }
    return result
