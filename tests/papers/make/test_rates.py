"""Methods are tested at the learning rate that was best on a held-out part of the training set."""

import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from papers.make.definitions import Across, TableDefinition, read_definition
from papers.make.run_archive import archive_file, read_archive
from papers.make.tables import smoothed

ROOT = Path(__file__).parents[3]
# For each page: the searches for its rates, how many evaluations an accuracy averages, and the
# override keys that its searches lack or set differently.
PAGES = {
    "methods": (
        ("methods_search", "esgd_search", "cesgd_search", "one_bit_adam_search"),
        1,
        ("strategy.optimizer.eps", "strategy.optimizer.warmup_steps"),
    ),
    "esgd_baselines": (("esgd_search",), 1, ()),
    "cesgd_operators": (("cesgd_search",), 1, ()),
    "cesgd": (("cesgd_table1_search",), 1, ()),
    "methods_federated": (
        ("methods_federated_search",),
        1,
        ("eval_every", "nodes", "strategy.fraction_train"),
    ),
    "edgify_large_batch": (("edgify_search",), 1, ("schedule", "schedule.patience")),
    "dgc": (("dgc_long_search",), 1, ("rounds",)),
    "adacomp_rates": (("adacomp_search",), 10, ("downlink",)),
    "f2i": (("f2i_search",), 1, ()),
    "edgify_federated": (
        ("edgify_federated_search", "edgify_search"),
        1,
        ("schedule", "schedule.patience", "dataset"),
    ),
    "lost_replies": (("lost_replies_search",), 1, ()),
    "batchnorm": (("batchnorm_search",), 1, ()),
}
CHOSEN = ("lr", "strategy.eta", "strategy.server_learning_rate")  # keys whose values a search chose
PAPERS = {"table1", "figure3"}  # tables that use the paper's rates
CODED = ", losslessly coded"  # the end of the label of a row that takes the same steps as another
# The page says why these rows have another rate: it makes a stronger baseline.
STRONGER = {("methods", "SGD"), ("esgd_baselines", "SGD")}
BESIDE = {
    "no staleness rule, at AdaComp's rate of 0.1",  # this row shows a rate that is not the best
    *("momentum SGD, lr 0.1", "F2I (int8), lr 0.1"),  # these use twice the best rate
    *("F2I (int8), lr 0.2", "eSGD, `beta=1`, lr 0.2"),  # one seed fell at the best rate
    "EF21-SGDM, 1 %, lr 0.8",  # two seeds fell at the best rate
}


def taken_apart(overrides, without):
    """Return the settings of a row or run without its learning rates, and the rates as a dict."""
    found = dict(word.split("=", 1) for word in shlex.split(overrides))
    rates = {key: float(found.pop(key)) for key in CHOSEN if key in found}
    return frozenset((key, value) for key, value in found.items() if key not in without), rates


def best_rates(searches, smooth, without):
    """Return for each method the rates whose worst seed is best, among those with most seeds."""
    found = defaultdict(lambda: defaultdict(list))
    for run in (run for name in searches for run in read_archive(archive_file(ROOT, name))):
        method, rates = taken_apart(run.settings, without)
        accuracy = smoothed(run, smooth).result["accuracy"] or 0
        found[method][tuple(rates.items())].append(accuracy)
    best = {}
    for method, tried in found.items():
        most = max(map(len, tried.values()))
        full = {rates: seeds for rates, seeds in tried.items() if len(seeds) == most}
        best[method] = dict(max(full, key=lambda rates: min(full[rates])))
    return best


@pytest.mark.parametrize("name", PAGES)
def test_rows_use_the_best_rate_of_the_search(name):
    searches, smooth, without = PAGES[name]
    best = best_rates(searches, smooth, without)
    page = read_definition(ROOT, ROOT / "papers" / "pages" / f"{name}.yaml")
    runs = [t for t in page.tables if isinstance(t, TableDefinition)]
    tables = [t for t in runs if t.experiment not in searches and t.id not in PAPERS]
    for table in tables:
        file = ROOT / "papers" / "experiments" / f"{table.experiment}.yaml"
        default = OmegaConf.load(file).get("lr")
        for row in table.rows:
            (overrides,) = replace(table, across=Across()).settings(row)
            method, rates = taken_apart(overrides, without)
            shown = row.label in BESIDE or (name, row.label) in STRONGER
            if not shown and not row.label.endswith(CODED):
                assert (rates or {"lr": default}) == best[method], row.label
