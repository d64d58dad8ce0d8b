"""Each method's rate on the test set is the one that was best on a part of the training set."""

import shlex
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
from omegaconf import OmegaConf

from report.course import settled
from report.definitions import read_definition
from report.kept import kept_file, read_kept

ROOT = Path(__file__).parents[2]
# Pages, the searches of their rates, of how many evaluations an accuracy there is the mean, and
# keys of words that a search does not have, or has otherwise.
PAGES = {
    "methods": (("methods_search", "esgd_search", "cesgd_search"), 1, ()),
    "esgd_baselines": (("esgd_search",), 1, ()),
    "cesgd_operators": (("cesgd_search",), 1, ()),
    "cesgd": (("cesgd_table1_search",), 1, ()),
    "methods_federated": (("methods_federated_search",), 1, ("eval_every",)),
    "edgify_large_batch": (("edgify_search",), 1, ("schedule", "schedule.patience")),
    "dgc": (("dgc_search",), 1, ("rounds", "compression.warmup_steps")),
    "adacomp_rates": (("adacomp_search",), 10, ("downlink",)),
}
PAPERS = {"table1", "figure3"}  # tables at the paper's rate
BESIDE = {
    "no staleness, AdaComp's rate",  # it is about a rate that is not the best
    "SGD, losslessly coded",  # whose steps are SGD's
}


def taken_apart(words, without):
    """Return what a row or a run is of, and at which rate; None where no word says it."""
    found = dict(word.split("=", 1) for word in shlex.split(words))
    rate = found.pop("lr", None)
    method = frozenset((key, value) for key, value in found.items() if key not in without)
    return method, rate if rate is None else float(rate)


def best_rates(searches, smooth, without):
    """Return the rate of each method with the highest mean accuracy of all its seeds."""
    found = defaultdict(lambda: defaultdict(list))
    for run in (run for name in searches for run in read_kept(kept_file(ROOT, name))):
        method, rate = taken_apart(run.words, without)
        found[method][rate].append(settled(run, smooth).numbers["accuracy"] or 0)
    return {
        method: max(rates, key=lambda rate: fmean(rates[rate])) for method, rates in found.items()
    }


@pytest.mark.parametrize("name", PAGES)
def test_rows_have_the_best_rate_of_the_search(name):
    searches, smooth, without = PAGES[name]
    best = best_rates(searches, smooth, without)
    page = read_definition(ROOT, ROOT / "report" / "pages" / f"{name}.yaml")
    tables = [t for t in page.tables if t.experiment not in searches and t.id not in PAPERS]
    for table in tables:
        file = ROOT / "conf" / "experiment" / f"{table.experiment}.yaml"
        default = OmegaConf.load(file).get("lr")
        for row in table.rows:
            method, rate = taken_apart(row.words, without)
            if row.label not in BESIDE:
                assert (rate or default) == best[method], row.label
