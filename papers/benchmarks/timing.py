"""Compares the times of training programs (contestants) that alternate on a noisy machine.

A contestant is a callable. It gets a number of rounds, runs them, and returns the seconds of each
round. It exists for the whole comparison, so its start-up is not measured. The rounds run in short
blocks.
Each block is compared with the baseline's blocks just before and just after it:

    bare  pfl1  bare  pfl2  bare  local1  bare ...      a cycle; the next one has the reverse order

A ratio is the median of these comparisons. So slow changes of the machine's speed cancel out, and a
single disturbed block has little effect.
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

ROOT = Path(__file__).parents[2]
Contestant = Callable[[int], list[float]]


class Turns:
    """Divides a contestant's training loop into blocks of rounds, and times the rounds.

    The loop calls `lap()` before every round, and stops when `lap()` returns False. The loop of a
    framework calls it in the hook after every round. Between two blocks `lap` reports the times of
    the last block and waits for the next request; this waiting is not timed.
    """

    def __init__(self, receive: Callable[[], int], report: Callable[[list[float]], None]) -> None:
        self._receive, self._report = receive, report
        self._left = 0
        self._started = 0.0
        self._seconds: list[float] = []

    def lap(self) -> bool:
        """Store the last round's time; wait if a block has ended. Return False to stop the loop."""
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
    """Reads requests from stdin and writes answers to stdout; all other output goes to stderr.

    `loss` is called after each block. Its value shows that the rounds have trained the model.
    """

    def __init__(self, loss: Callable[[], float]) -> None:
        self._loss = loss
        self._answers: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def receive(self) -> int:
        """Return the number of rounds to run next; 0 if the other end is closed."""
        return int(sys.stdin.readline() or 0)

    def report(self, seconds: list[float]) -> None:
        """Write the seconds and the loss as one line of JSON."""
        self._answers.write(json.dumps({"seconds": seconds, "loss": self._loss()}) + "\n")


def take_turns(a_round: Callable[[], object], loss: Callable[[], float]) -> None:
    """Run `a_round` as often as requested over stdin, until the other end is closed."""
    pipe = Pipe(loss)
    turns = Turns(pipe.receive, pipe.report)
    while turns.lap():
        a_round()


class Child:
    """A contestant in separate processes, one for each of `envs`; only the first gets requests.

    `envs`: environment variables of each process. Each process runs on one thread and on the CPU.
    `losses` has the training loss after each block, by the number of rounds so far. A call raises
    `RuntimeError` if the process ends before it has answered; the process's own error message is on
    stderr.
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
        """Run `rounds` rounds; return the seconds of each round."""
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
        """Return the peak resident memory in MB of the process that had most; Linux only."""
        statuses = [Path(f"/proc/{p.pid}/status").read_text() for p in self._processes]
        return max(int(s.split("VmHWM:")[1].split()[0]) for s in statuses) / 1000

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes: close the first one's input, wait, and kill those that do not end."""
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
    """Contestants that run at the same time, to measure the limit of the machine.

    Each contestant runs separate rounds. The time of a round is the mean of the contestants' times,
    divided by the number of contestants. An engine would need this time if it could divide a round
    among them without any cost.
    """

    def __init__(self, *children: Contestant) -> None:
        self._children = children

    def __call__(self, rounds: int) -> list[float]:
        """Run `rounds` rounds in every contestant; return each round's seconds (see the class)."""
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
    """Compare all contestants, each in `cycles` (at least 2) blocks of `rounds` rounds.

    Returns for each contestant: `seconds` per round (median), `fastest` (the seconds of the fastest
    round), and the number of timed `rounds`. For all but `baseline` it also returns `ratio`, the
    contestant's time over the baseline's (median over the blocks), its `quartiles`, and
    `ratio_fastest`, the ratio of the fastest rounds. Use `ratio_fastest` if the machine was
    disturbed all the time.
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
