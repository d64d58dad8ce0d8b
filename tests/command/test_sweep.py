"""A sweep continues after a failed job, and lists the failed jobs."""

from edgewire.report import table
from tests.runs import QUICK, result_of


def test_a_failed_job_is_listed_once_and_does_not_end_the_sweep(command, tmp_path):
    for nodes, expected in (("0,2", 2), ("2", 0)):
        again = f"hydra.sweep.dir={tmp_path / 'again'}"
        code, printed, _ = command("-m", *QUICK, f"nodes={nodes}", again)
        assert code == expected
        assert printed.err.count("nodes must be a number of at least 1, not 0") == expected
        assert ("1 of 2 jobs failed" in printed.err) == bool(expected)
        last = tmp_path / "again" / ("1" if expected else "0")
        assert result_of(last)["client_updates"] == 6


def test_a_sweep_goes_on_after_a_job_has_diverged_and_lists_it(command, capsys):
    code, printed, folder = command("-m", *QUICK, "lr=10000,0.1")
    assert code == 1
    assert "1 of 2 jobs failed or diverged" in printed.err
    assert "  0: rounds=3 engine.workers=1 lr=10000: the run has diverged; try " in printed.err
    assert [result_of(folder / str(job))["diverged"] for job in (0, 1)] == [True, False]
    table.main([str(folder)])
    assert f"\ndiverged: {folder / '0'}\n" in capsys.readouterr().out


def test_a_sweep_ends_with_a_table_of_its_runs_and_a_command(command, capsys):
    code, printed, folder = command("-m", *QUICK, "compression=topk,int8", "seed=0,1")
    assert code == 0
    lines = printed.out.splitlines()
    assert lines[-1] == f"pictures and more: python -m edgewire.report {folder}"
    head, *rows = lines[-4:-1]
    assert head.split()[:3] == ["compression", "runs", "accuracy"]
    assert [row.split()[:2] for row in rows] == [["topk", "2"], ["int8", "2"]]
    assert max(map(len, lines[-4:-1])) <= 100
    table.main([str(folder)])
    assert rows[0].split()[2] in capsys.readouterr().out
