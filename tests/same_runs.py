"""Compares the results of runs with those of another commit: hashes of models and histories.

`python -m tests.same_runs store FILE` writes the SHA-256 of `model.safetensors`, and of
`history.jsonl` without real seconds, of every preset `algorithm=` with one and with two workers.
`python -m tests.same_runs compare FILE` runs them again in this commit and prints each difference.
`--engines` runs some synchronous presets on Ray, on a real server with two nodes, and killed and
resumed, or only the parts that are named. Golden payloads are in
tests/compression/payloads.
"""

import argparse
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.deploy.processes import ROOT, eventually
from tests.runs import choices, history_of, model_bytes

ASYNCHRONOUS = {
    "adacomp", "asgd", "comp_asgd", "edgewire_async", "fedasync", "fedbuff", "qafel",
}  # fmt: skip
FAMILIES = {
    "edgewire": "algorithm=edgewire",
    "cesgd": "algorithm=cesgd",
    "dgc": "algorithm=dgc",
    "f2i": "algorithm=fedavg_f2i",
    "scaffold": "algorithm=fedavg local=scaffold",
    "segments": "algorithm=synthetic_gradients network.seconds_per_step=0.01",
    "fedavg": "algorithm=fedavg",
}
Hashes = dict[str, dict[str, str]]


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a run's model and of its history without real seconds."""
    parts = {"model": model_bytes(folder), "history": json.dumps(history_of(folder)).encode()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


def command(words: Sequence[str]) -> list[str]:
    """Return the command line of a run with these words."""
    return [sys.executable, "run.py", "seed=0", *words]


def finished(words: Sequence[str]) -> None:
    """Run the command in the root; raises `CalledProcessError` after it has failed."""
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def local(folder: Path, algorithms: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Run the presets on the local engine, as two sweeps; yield each run's name and folder."""
    for kind, ends in (("rounds", "rounds=3"), ("pushes", "++strategy.pushes=30")):
        some = [name for name in algorithms if (name in ASYNCHRONOUS) == (kind == "pushes")]
        if not some:
            continue
        choice, where = f"algorithm={','.join(some)}", f"hydra.sweep.dir={folder / kind}"
        finished(command(["-m", choice, "nodes=4", ends, "engine.workers=1,2", where]))
        for number, (name, workers) in enumerate(itertools.product(some, (1, 2))):
            yield f"{name} workers={workers}", folder / kind / str(number)


def on_ray(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Run presets on Ray; yield each run's name and folder."""
    for name in names:
        where = f"hydra.run.dir={folder / name}"
        finished(command([*FAMILIES[name].split(), "nodes=4", "rounds=3", "engine=ray", where]))
        yield f"{name} on Ray", folder / name


def on_server(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Run presets on a server of the project with two nodes; yield each run's name and folder."""
    from tests.deploy.servers import Field  # it imports Flower

    folder.mkdir()
    with Field(folder) as field:
        field.serve(["--insecure", "--host", "127.0.0.1", "--state", str(folder / "server")])
        for index in range(2):
            config = f"partition-id={index} num-partitions=2"
            field.node(f"node{index}", "--node-config", config)
        engine = ["nodes=2", "engine=superlink", f"engine.address=127.0.0.1:{field.port}"]
        for name in names:
            where = f"hydra.run.dir={folder / name}"
            finished(command([*FAMILIES[name].split(), "rounds=3", *engine, where]))
            yield f"{name} on a server", folder / name


def resumed(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Kill runs at their first checkpoint and resume them; yield each run's name and folder."""
    for name in names:
        run = folder / name
        words = [*FAMILIES[name].split(), "nodes=4", "rounds=200", "checkpoint_every=5"]
        words += ["engine.workers=1", f"hydra.run.dir={run}"]
        with subprocess.Popen(command(words), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            eventually((run / "checkpoint").exists)
            process.send_signal(signal.SIGKILL)
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{name} has ended before it was killed")
        finished([sys.executable, "run.py", f"resume={run}"])
        yield f"{name} killed and resumed", run


PARTS = {"local": local, "ray": on_ray, "server": on_server, "resumed": resumed}


def measured(names: Sequence[str], parts: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Run everything that is asked for; yield each run's name and its hashes."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            for name, run in PARTS[part](Path(scratch, part), names):
                yield name, hashes(run)


def main() -> int:
    """Store the hashes, or compare them with stored ones; return 1 if any differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["store", "compare"])
    parser.add_argument("file", type=Path, help="JSON file of hashes; `store` adds to its content")
    parser.add_argument(
        "--engines", nargs="*", choices=list(PARTS)[1:], help="these in place of presets; none: all"
    )
    parser.add_argument("--only", nargs="+", help="names of presets, or of families (--engines)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    stored: Hashes = json.loads(options.file.read_text()) if options.file.exists() else {}
    parts = ["local"] if options.engines is None else options.engines or list(PARTS)[1:]
    names = options.only or (choices("algorithm") if parts == ["local"] else list(FAMILIES))
    changed = count = 0
    for count, (name, found) in enumerate(measured(names, parts), 1):  # noqa: B007
        if options.action == "store":
            stored[name] = found
            options.file.write_text(json.dumps(stored, indent=1))
        elif wrong := [key for key in found if found[key] != stored.get(name, {}).get(key)]:
            changed += 1
            print(f"{name}: {', '.join(wrong)} differ", flush=True)
    print(f"{count} runs, {changed} differ")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
