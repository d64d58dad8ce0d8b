"""The example in docs/your-task.md runs unchanged in its own folder."""

import os
import re
import shlex
import sys

import pytest

from tests import fork_server
from tests.runs import ROOT, result_of

PAGE = (ROOT / "docs" / "your-task.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.fixture
def folder(tmp_path):
    """Write the page's files into a folder."""
    (tmp_path / "my_task.py").write_text(blocks("python")[0])
    paths = re.findall(r"`FOLDER/(conf/\S+\.yaml)`", PAGE)
    for path, text in zip(paths, blocks("yaml"), strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_train_the_page_s_model(number, folder):
    command = blocks("")[number].replace("\\\n", " ").replace("FOLDER", str(folder))
    variable, *words = shlex.split(command)
    name, value = variable.split("=")
    assert words[:2] == ["python", "run.py"]
    done = fork_server.run(
        [sys.executable, *words[1:], f"hydra.run.dir={folder}/run"],
        cwd=ROOT, env={**os.environ, name: value}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = result_of(folder / "run")
    assert (result["dataset"], result["model"]) == ("table", "net")
    assert result["best_mae"] == result["mae"] < 2.5
    assert "mae" in done.stdout
