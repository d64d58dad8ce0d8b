"""The example in docs/sweeps.md runs, with fewer and shorter runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"


@pytest.mark.system
def test_the_search_with_optuna_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    quick = code.replace("range(30)", "range(2)").replace("train(", 'train("rounds=1", "nodes=2", ')
    exec(quick, {})
    assert len(list(tmp_path.glob("outputs/*/*/result.json"))) == 2
    assert "{'density': " in capsys.readouterr().out
