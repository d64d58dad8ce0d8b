"""Partitions of a training split among the nodes."""

import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import flwr_datasets.partitioner as flower
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.task.datasets import Split
from edgewire.task.errors import TaskError
from edgewire.task.partition import Iid, Natural, Partition, Sampled

REPOSITORY = Path(__file__).parents[2]
MAKERS = {
    "iid": lambda nodes, seed: Iid(nodes),
    "theirs": lambda nodes, seed: flower.IidPartitioner(nodes),
    "dirichlet": lambda nodes, seed: flower.DirichletPartitioner(
        nodes, "label", alpha=1.0, min_partition_size=1, seed=seed
    ),
    "pathological": lambda nodes, seed: flower.PathologicalPartitioner(
        nodes, "label", 2, class_assignment_mode="deterministic", seed=seed
    ),
    "shards": lambda nodes, seed: flower.ShardPartitioner(nodes, "label", 2, seed=seed),
}


def numpy_state():
    return str(np.random.get_state())  # noqa: NPY002  # it is the legacy state that is global


def samples_of(total, classes=10):
    """Return samples sorted by class, as those of photos in folders are."""
    labels = torch.sort(torch.arange(total) % classes).values
    return Split(labels, labels)


def all_indices(partition, nodes):
    return [partition.indices(node) for node in range(nodes)]


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
def test_disjoint_and_complete(kind, data):
    nodes = data.draw(st.integers(1, 20), "nodes")
    total = data.draw(st.integers(40 * nodes, 60 * nodes), "total")
    classes = data.draw(st.integers(2, min(10, nodes + 1)), "classes")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    partition = Partition(MAKERS[kind](nodes, seed), samples_of(total, classes), nodes, seed)
    parts = all_indices(partition, nodes)

    counts = Counter(torch.cat(parts).tolist())
    assert set(counts.values()) == {1}
    assert min(counts) >= 0
    assert max(counts) < total
    # All shards have the same size; samples that do not fill a shard stay unused.
    left_out = total % (2 * nodes) if kind == "shards" else 0
    assert len(counts) == total - left_out
    assert all(part.dtype == torch.int64 for part in parts)
    assert all(len(part) > 0 for part in parts)


@pytest.mark.parametrize("kind", [*MAKERS, "sampled"])
@given(nodes=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), order=st.randoms())
def test_a_partition_does_not_depend_on_the_order_of_access(kind, nodes, seed, order):
    make = MAKERS.get(kind, lambda nodes, seed: Sampled(7))
    samples = samples_of(600)
    first = Partition(make(nodes, seed), samples, nodes, seed)
    other = Partition(make(nodes, seed), samples, nodes, seed)
    expected = all_indices(first, nodes)
    asked = [order.randrange(nodes) for _ in range(20)]
    for node in asked:
        assert torch.equal(other.indices(node), expected[node])


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "sampled"])
def test_another_seed_is_another_partition(kind):
    make = MAKERS.get(kind, lambda nodes, seed: Sampled(7))
    one, two = (
        Partition(make(4, s), samples_of(600), 4, s).indices(1).sort().values for s in (0, 1)
    )
    assert one.shape != two.shape or not torch.equal(one, two)


def test_shards_and_pathological_nodes_hold_two_classes_and_iid_ones_all():
    samples = samples_of(2000)
    for kind, most in (("shards", 2), ("pathological", 2), ("iid", 10)):
        partition = Partition(MAKERS[kind](10, 0), samples, 10, 0)
        held = [len(samples.labels[part].unique()) for part in all_indices(partition, 10)]
        assert max(held) == most
    assert min(held) == 10  # iid, although the labels were sorted


@given(st.integers(1, 30), st.integers(0, 99), st.integers(0, 2**32 - 1))
def test_equal_shares_equal_those_of_flwr_datasets(nodes, more, seed):
    samples = samples_of(nodes + more)
    ours, theirs = (
        all_indices(Partition(made, samples, nodes, seed), nodes)
        for made in (Iid(nodes), flower.IidPartitioner(nodes))
    )
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.system
def test_a_partition_is_the_same_in_another_process():
    script = (
        "import sys, torch\n"
        "from edgewire.task.datasets import Split\n"
        "from edgewire.task.partition import Partition, Sampled\n"
        "import flwr_datasets.partitioner as f\n"
        "labels = torch.arange(500) % 10\n"
        "d = f.DirichletPartitioner(9, 'label', 0.5, min_partition_size=1, seed=5)\n"
        "for made in (d, Sampled(20)):\n"
        "    p = Partition(made, Split(labels, labels), 9, 5)\n"
        "    for node in (8, 0, 3):\n"
        "        print(*p.indices(node).tolist())\n"
        "print({'matplotlib', 'seaborn', 'sklearn', 'torchvision'} & sys.modules.keys())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    lines = iter(run.stdout.splitlines())
    labels = torch.arange(500) % 10
    dirichlet = flower.DirichletPartitioner(9, "label", 0.5, min_partition_size=1, seed=5)
    for made in (dirichlet, Sampled(20)):
        partition = Partition(made, Split(labels, labels), 9, 5)
        for node in (8, 0, 3):
            assert next(lines) == " ".join(map(str, partition.indices(node).tolist()))
    assert next(lines) == "set()"  # no slow module was imported that partitions do not need
    assert run.stderr == ""


def test_flowers_plots_can_still_be_used():
    """Flower's module for plots is loaded at its first use, under its own name."""
    from flwr_datasets import visualization

    plot = visualization.plot_label_distributions
    assert plot.__module__ == "flwr_datasets.visualization.label_distribution"
    assert sys.modules["flwr_datasets.visualization"].plot_label_distributions is plot


@pytest.mark.parametrize("kind", [*MAKERS, "sampled"])
def test_global_random_state_and_the_given_partitioner_are_left_alone(kind):
    made = MAKERS.get(kind, lambda nodes, seed: Sampled(7))(5, 0)
    before = random.getstate(), numpy_state(), torch.get_rng_state()
    first = all_indices(Partition(made, samples_of(500), 5, 0), 5)
    again = all_indices(Partition(made, samples_of(500), 5, 0), 5)
    assert random.getstate() == before[0]
    assert numpy_state() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_hundred_thousand_sampled_nodes_take_little_memory():
    samples = samples_of(50_000)
    tracemalloc.start()
    partition = Partition(Sampled(50), samples, 100_000, 3)
    drawn = []
    for node in range(0, 100_000, 200):
        indices = partition.indices(node)
        assert indices.shape == (50,)
        assert indices.dtype == torch.int64
        assert len(indices.unique()) == 50
        assert int(indices.min()) >= 0
        assert int(indices.max()) < 50_000
        if node < 20_000:
            drawn.append(indices)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    # 100 nodes hold 5,000 draws of 50,000: some are shared, most are not.
    assert 4_500 < len(torch.cat(drawn).unique()) < 5_000


def grouped(groups):
    """Return samples of groups that have these numbers of samples, in a mixed order."""
    ids = torch.repeat_interleave(torch.arange(len(groups)) * 7 - 3, torch.tensor(groups))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))]
    return Split(torch.zeros(len(ids), 2), groups=ids)


@given(
    groups=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_natural_gives_whole_groups_evenly(groups, seed, data):
    nodes = data.draw(st.integers(1, len(groups)))
    split = grouped(groups)
    parts = all_indices(Partition(Natural(nodes), split, nodes, seed), nodes)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(split)))
    members = [set(split.groups[part].tolist()) for part in parts]
    assert sum(map(len, members)) == len(groups) == len(set().union(*members))
    assert max(map(len, members)) - min(map(len, members)) <= 1
    if nodes == len(groups):  # as Flower's, which can only make as many partitions as groups
        theirs = Partition(flower.NaturalIdPartitioner("group"), split, nodes, seed)
        for own, other in zip(parts, all_indices(theirs, nodes), strict=True):
            assert sorted(own.tolist()) == sorted(other.tolist())


def test_flower_s_partitioners_of_groups_work():
    split = grouped([3, 4, 5, 6])
    partition = Partition(flower.GroupedNaturalIdPartitioner("group", 2), split, 2, 0)
    members = [set(split.groups[part].tolist()) for part in all_indices(partition, 2)]
    assert [len(each) for each in members] == [2, 2]
    assert len(Partition(flower.IidPartitioner(3), split, 3, 0).indices(0)) == 6


FIFTY, MANY = samples_of(50), samples_of(400)
DIRICHLET = flower.DirichletPartitioner
REFUSED = [
    *((make(51, 0), FIFTY, 51, "nodes=51 is more than the 50 training samples")
      for make in MAKERS.values()),
    *((Sampled(n), FIFTY, 3, f"partition.samples={n}: .* 1 to 50") for n in (0, -1, 51)),
    (DIRICHLET(40, "label", 0.01, min_partition_size=10), MANY, 40, "number of attempts"),
    (flower.PathologicalPartitioner(40, "label", 11), MANY, 40, "num_classes_per_partition"),
    (flower.ShardPartitioner(40, "label", 2, shard_size=100), MANY, 40, "impossible"),
    (Iid(39), MANY, 40, "makes 39 partitions for nodes=40"),
    (flower.IidPartitioner(41), MANY, 40, "makes 41 partitions for nodes=40"),
    (DIRICHLET(40, "target", 1.0), MANY, 40, "target"),
    (DIRICHLET(40, "label", 0.05, min_partition_size=0), MANY, 40, "without a sample"),
    (Natural(5), grouped([3, 4, 5, 6]), 5, "nodes=4 or fewer"),
    (flower.GroupedNaturalIdPartitioner("group", 3), grouped([3, 4, 5, 6]), 3, "makes 2 part"),
    (flower.ShardPartitioner(2, "label", 2), grouped([3, 4, 5, 6]), 2, "targets that are classes"),
    (flower.NaturalIdPartitioner("user"), grouped([3, 4, 5, 6]), 4, "partition_by=user"),
    (Natural(2), FIFTY, 2, r"group needs dataset\.group=COLUMN, or Split\(x, y, groups\) of"),
    (flower.NaturalIdPartitioner("group"), FIFTY, 2, r"dataset\.group="),
]  # fmt: skip


@pytest.mark.parametrize(("made", "split", "nodes", "says"), REFUSED)
def test_a_partition_that_cannot_be_made_gives_one_line(made, split, nodes, says):
    with pytest.raises(TaskError, match=says) as error:
        all_indices(Partition(made, split, nodes, 0), nodes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("made", [flower.IidPartitioner(5), Iid(5), Sampled(3)])
def test_nodes_that_do_not_exist(made):
    for node in (-1, 5):
        with pytest.raises(TaskError, match=f"no node {node}"):
            Partition(made, FIFTY, 5, 0).indices(node)
