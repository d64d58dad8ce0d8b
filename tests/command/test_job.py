"""A run that diverges or cannot continue ends with a one-line error and a result."""

import re

import pytest

from edgewire.command import job
from tests.runs import QUICK, result_of

ONE_STEP = ["rounds=1", "nodes=2", "local_steps=1", "engine.workers=1"]


@pytest.mark.parametrize("algorithm", ["fedavg_f2i_both", "edgewire", "fedavg_secure"])
def test_updates_that_are_not_finite_are_left_out_counted_and_named(command, algorithm):
    code, printed, folder = command(
        "rounds=1", "engine.workers=1", "lr=1e30", f"algorithm={algorithm}"
    )
    assert code == 1
    assert result_of(folder)["failures"] == 10
    assert result_of(folder)["client_updates"] == 0
    assert "left out" in printed.out
    assert printed.err.startswith("warning: the run has diverged; try a lower lr=")
    assert result_of(folder)["stopped"].startswith("no update could be used ")


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Flower's FedAdam warns
@pytest.mark.parametrize(
    "words",
    [
        ["lr=1e4"],
        ["lr=30", "algorithm=fedavg_f2i"],
        ["algorithm=sgd", "rounds=20", "lr=1e5"],
        ["strategy=fedadam", "strategy.eta=1e39"],
    ],
    ids=["no number", "finite, but huge", "steps", "at the server"],
)
def test_a_diverged_run_names_a_remedy(command, words):
    code, printed, folder = command(*QUICK, *words)
    assert code == 1
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("warning: the run has diverged; try a lower lr= (it is ")
    assert result_of(folder)["diverged"] is True


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        (["strategy=asynchronous", "strategy.pushes=3", "rounds=3"], "rounds"),
        ([*QUICK, "fidelity=low"], "fidelity"),
        ([*QUICK, "compression=topk", "compression.sparsifier=energy", "fidelity=low"], "fidelity"),
        ([*QUICK, "compression=edgewire", "strategy=sparse_averaging", "fidelity=low"], ""),
        ([*QUICK, "privacy=sample", "privacy.anyway=true"], "privacy.anyway"),
    ],
)
def test_an_option_without_effect_is_named(command, words, ignored, monkeypatch):
    monkeypatch.setattr(job, "begin_job", lambda *_: True)  # the run itself is not of interest
    code, printed, _ = command(*words)
    assert code == 0
    said = [line.split()[1] for line in printed.out.splitlines() if "= has no effect" in line]
    assert said == [f"{ignored}="] * bool(ignored)


def test_a_sweep_may_have_jobs_without_the_privacy_of_others(command):
    """Also such a job's saved configuration is a valid one."""
    code, _, folder = command("-m", *ONE_STEP, "seed=0,1", "privacy=none", "privacy.epsilon=8")
    assert code == 0
    assert command(f"start={folder}/1")[0] == 0
    code, printed, _ = command(f"start={folder}/1", "privacy.epsilon=3")
    assert code == 2
    assert "privacy.epsilon= protects nothing without privacy.unit=sample, say" in printed.err


@pytest.mark.system
def test_a_private_run_is_trained_on_as_its_lines_say(command, cli):
    code, _, run = command(*ONE_STEP, "privacy=sample", "privacy.epsilon=4")
    assert code == 0
    words = re.search(f"(start={run} .*) trains", cli(f"resume={run}")[1].err)[1].split()
    assert words[2:] == ["privacy.epsilon=8", "privacy.noise=null"]
    code, _, on = command(*words, "rounds=2")
    assert code == 0
    assert 4 < result_of(on)["epsilon"] <= 8
    code, printed, _ = command(f"start={run}", "privacy.unit=none")
    assert code == 0
    assert "WARNING  the model is of a private run" in printed.out
    code, printed, _ = command(f"start={run}", "privacy.epsilon=3")
    assert code == 2
    assert re.search(r"epsilon \S+ at delta 1e-05 by RDP, which decides; give a", printed.err)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_run_that_cannot_resume_keeps_its_result(resumes, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "resumes", lambda: resumes)
    file, *others = [tmp_path / name for name in job.RUN_FILES]
    for each in (file, *others):
        each.write_text("old")

    def fail():
        assert not file.exists()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), job.result_aside(tmp_path):
        fail()
    assert [each.exists() for each in (file, *others)] == [resumes] * (1 + len(others))
    with job.result_aside(tmp_path):
        file.write_text("new")
    assert file.read_text() == "new"
