"""Makes an invented page of results: its definition, its runs, and the page itself."""

import lzma
import random

from papers.make.results import main
from papers.make.run_archive import main as keep
from tests.report.made_runs import add_job

PAGE = """
title: A page
claim: "B is {b.verdict} A: {b.difference}."
setting: Made up.
tables:
  - experiment: e
    against: a
    columns: [paper, accuracy, difference, updates]
    rows:
      - {id: a, label: A, overrides: lr=1, paper: "99.0"}
      - {id: b, label: B, overrides: momentum=true lr=2}
      - {id: c, label: C, overrides: lr=3}
"""
ACCURACIES = {"lr=1": (0.80, 0.81, 0.79), "lr=2 momentum=True": (0.81, 0.825, 0.80)}


def define(root, text, name="page"):
    (root / "papers" / "pages" / f"{name}.yaml").write_text(text)


def run(root, accuracies, experiment="e", **result):
    """Make and store runs of each row's overrides with the seeds 0, 1, ..., in random order."""
    jobs = [(overrides, *seed) for overrides, of in accuracies.items() for seed in enumerate(of)]
    random.shuffle(jobs)
    sweep = root / f"sweep{len(list(root.glob('sweep*')))}"
    for number, (overrides, seed, accuracy) in enumerate(jobs):
        every = f"experiment={experiment} {overrides} seed={seed}"
        add_job(sweep / str(number), every, accuracy=accuracy, rounds=9, **result)
    assert keep([experiment, str(sweep)], root) == 0


def packed(text):
    return lzma.compress(text.encode())


def unpacked(file):
    """Return the text of an archive."""
    return lzma.decompress(file.read_bytes()).decode()


def written(root, name="page"):
    assert main([], root) == 0
    return (root / "papers" / "results" / f"{name}.md").read_text()


def rows_of(text):
    """Return the first table's rows by label, each as a dict of columns."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines]
    return {row[0]: dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[2:]}
