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
    for name, text in zip(
        re.findall(r"Save this as `(\w+\.py)`", PAGE), blocks("python"), strict=True
    ):
        (tmp_path / name).write_text(text)
    paths = re.findall(r"`FOLDER/(conf/\S+\.yaml)`", PAGE)
    for path, text in zip(paths, blocks("yaml"), strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.few(2)
@pytest.mark.parametrize("number", range(len(blocks(""))))
def test_the_commands_train_the_page_s_model(number, folder):
    command = blocks("")[number].replace("\\\n", " ").replace("FOLDER", str(folder))
    words = shlex.split(command)
    variables = dict(word.split("=") for word in words[: words.index("python")])
    words = words[len(variables) + 1 :]
    assert words[0] == "run.py"
    done = fork_server.run(
        [sys.executable, *words, f"hydra.run.dir={folder}/run"],
        cwd=ROOT, env={**os.environ, **variables}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = result_of(folder / "run")
    assert (result["dataset"], result["model"]) == ("table", "net")
    assert result["best_mae"] == result["mae"] < 2.5
    assert "mae" in done.stdout
