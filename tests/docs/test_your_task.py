"""The example in docs/your-task.md runs unchanged in its own folder."""

import os
import re
import shlex
import sys

import numpy as np
import pytest

from tests import fork_server
from tests.runs import ROOT, result_of

PAGE = (ROOT / "docs" / "your-task.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


# Tables have tests of their own.
OTHERS = ("dataset=csv", "dataset=npz", "start=RUN", "task=table", "error: ")
COMMANDS = [text for text in blocks("") if not any(word in text for word in OTHERS)]


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


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_the_commands_train_the_page_s_model(number, folder):
    command = COMMANDS[number].replace("\\\n", " ").replace("FOLDER", str(folder))
    words = shlex.split(command)
    variables = dict(word.split("=") for word in words[: words.index("python")])
    words = words[len(variables) + 1 :]
    assert words[0] == "run.py"
    words = ["rounds=25" if word == "rounds=40" else word for word in words]  # the GAN learns
    done = fork_server.run(
        [sys.executable, *words, f"hydra.run.dir={folder}/run", "engine.workers=1"],
        cwd=ROOT, env={**os.environ, **variables}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = result_of(folder / "run")
    if result["model"] == "Gan":
        assert result["loss"] < 0.6
        return
    assert (result["dataset"], result["model"]) == ("table", "net")
    assert result["best_mae"] == result["mae"] < 2.5
    assert "mae" in done.stdout


def test_a_table_trains_without_python(tmp_path):
    """The section's command trains its example, continued to 60 rows of each sensor."""
    section = PAGE.partition("## A table of numbers")[2].partition("\n## ")[0]
    lines = re.search(r"^```csv\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1].splitlines()
    rows = [line.split(",") for line in lines[1:]]
    for step in range(1, 30):
        for sensor, temperature, humidity, power in rows[:4]:
            values = float(temperature) + step / 10, float(humidity), float(power) + step / 70
            rows.append([sensor, *map(str, values)])
    text = "\n".join([lines[0], *map(",".join, rows)])
    (tmp_path / "sensors.csv").write_text(text)
    command = re.search(r"^```\n(python run.py .*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    words = shlex.split(command.replace("\\\n", " ").replace("FOLDER", str(tmp_path)))
    done = fork_server.run(
        [sys.executable, *words[1:], f"hydra.run.dir={tmp_path}/run", "engine.workers=1"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path / "run")
    assert result["dataset"] == "csv"
    assert result["mae"] < 0.5


@pytest.mark.few(1)
def test_own_arrays_train_an_own_network(folder):
    """The section's commands train, predict and train on."""
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(80, 6, 30)).astype("f4"), "y": np.arange(80) % 5}
    np.savez(folder / "windows.npz", **arrays, person=np.arange(80) % 8)
    np.savez(folder / "others.npz", x=arrays["x"], y=arrays["y"] % 3, person=np.arange(80) % 8)
    np.savez(folder / "new.npz", x=arrays["x"])
    text = "".join(each for each in blocks("") if "dataset=npz" in each or "start=RUN" in each)
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("FOLDER", str(folder)).replace("RUN", str(folder / "run")))
        words = words[words.index("run.py") :]
        if words[1] == "predict":
            words[-1:] = [str(folder / "new.npz"), "--out", str(folder / "p.csv")]
        else:
            end = "on" if "start=" in words[1] else "run"
            words += ["rounds=1", f"hydra.run.dir={folder / end}", "engine.workers=1"]
        done = fork_server.run(
            [sys.executable, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (
        (folder / "p.csv").read_text().startswith("id,class,probability,p(0),p(1),p(2),p(3),p(4)")
    )
    assert result_of(folder / "on")["class_names"] == ["0", "1", "2"]
