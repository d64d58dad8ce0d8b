"""Helpers for tests of runs: they compose configurations fast, write photos and read results."""

import copy
import functools
import json
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from PIL import Image

from edgewire.conf.load import HERE, compose_config, to_config

ROOT = HERE.parent
QUICK = ["rounds=3", "engine.workers=1"]
REAL = {"seconds", "seconds_by_segment", "segments"}  # the columns in real seconds


def choices(group):
    """Return the names of a group's choices in `conf`."""
    return sorted(path.stem for path in (HERE / group).glob("*.yaml"))


def anywhere(group):
    """Return overrides for each choice of `compression` or `downlink`, for use with any strategy.

    The coder `context` is for `strategy=sparse_averaging`, so `entropy` takes its place. `ef21`
    needs its own optimiser at the server, so it is left out. The momentum of `dgc`
    is for gradients.
    """
    found = {}
    for name in choices(group):
        if name == "ef21":
            continue
        coder = OmegaConf.load(HERE / group / f"{name}.yaml").get("coder")
        found[name] = [f"{group}={name}"]
        found[name] += [f"{group}.coder=entropy"] if coder == "context" else []
        found[name] += [f"{group}.momentum=0"] if name == "dgc" else []
    return found


def result_of(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def history_of(folder):
    """Return the rows of a run's history, without values in real seconds."""
    rows = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if key not in REAL} for row in rows]


def nodes_of(folder):
    """Return the content of a run's nodes.json, without the time of its writing."""
    return {**json.loads((folder / "nodes.json").read_text()), "updated": None}


def model_bytes(folder):
    return (folder / "model.safetensors").read_bytes()


def write_photos(folder, seed=0):
    """Write ten dark photos of cats and ten light ones of dogs, each kind into its folder."""
    random = np.random.default_rng(seed)
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = random.integers(0, 99, (9, 7, 3), np.uint8) + np.uint8(150 * label)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@contextmanager
def told_to_end(folder, rows=1):
    """Send this process SIGTERM once a run below the folder has recorded `rows` rows."""

    def end():
        found = any(f.read_text().count("\n") >= rows for f in folder.glob("*/history.jsonl"))
        if found:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    with often(end, 0.05):
        yield


@contextmanager
def often(call, seconds):
    """Call a function in another thread, again and again, until it returns true or at the end."""
    over = threading.Event()

    def repeat():
        while not over.wait(seconds) and not call():
            pass

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def composed(*words):
    """Return what `compose_config` returns; each set of choices is composed once.

    Hydra takes 60 ms to compose, longer than many runs of these tests. Hydra inserts values after
    the choices; this function does the same with Hydra's parser.
    """
    parsed = OverridesParser.create().parse_overrides(list(words))
    values = [word for word in parsed if not (HERE / word.key_or_group).is_dir()]
    made = copy.deepcopy(_chosen(*(word.input_line for word in parsed if word not in values)))
    for word in values:
        if word.is_delete():
            group, _, key = word.key_or_group.rpartition(".")
            with open_dict(parent := OmegaConf.select(made, group)):
                del parent[key]
            continue
        OmegaConf.update(
            made, word.key_or_group, word.value(), force_add=word.is_add() or word.is_force_add()
        )
    return made


def configured(*words):
    """Return the typed, checked configuration of the overrides."""
    return to_config(composed(*words))


@functools.cache
def _chosen(*choices):
    return compose_config(list(choices))
