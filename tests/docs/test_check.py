"""`make docs-check` finds wrong commands in pages."""

import re

import pytest

from docs.check import NOT_RUN, TUTORIAL, check_page, main, pages
from docs.check_without_running import ROOT
from docs.check_without_running import check as check_command
from docs.commands import blocks
from docs.run_page import is_printed, page_run


def commands(folder, text):
    """Return the commands of a page with this text."""
    page = folder / "page.md"
    page.write_text(text)
    return [each for block in blocks(page) if block.is_shell for each in block.commands()]


# Which commands a page has


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("make run   # first", [("make", "run")]),
        ("a=1 b='2 3' python run.py x=[1,2]", [("python", "run.py", "x=[1,2]")]),
        ("python a \\\n    --b c\nls d", [("python", "a", "--b", "c"), ("ls", "d")]),
        ("ls a | head -1 && cd b; exit", [("ls", "a"), ("head", "-1"), ("cd", "b"), ("exit",)]),
        ("(\n  set -e\n  until ls; do sleep 1; done\n)", [("set", "-e"), ("ls",), ("sleep", "1")]),
        ("cd a --port 9091 > log 2>&1 & server=$!", [("cd", "a", "--port", "9091")]),
        ("ls < in >> out 2> err", [("ls",)]),
        ("for x in 0 1; do\n  ls $x &\ndone", [("ls", "$x")]),
        ("export A='x\ny' B=$(mktemp -d)", [("export", "A=x\ny", "B=$"), ("mktemp", "-d")]),
        ("kill $x || { grep a; exit 1; }", [("kill", "$x"), ("grep", "a"), ("exit", "1")]),
        ("python -m a ... --b c", [("python", "-m", "a", "...", "--b", "c")]),
    ],
)  # fmt: skip
def test_the_commands_of_a_block(text, expected, tmp_path):
    found = commands(tmp_path, f"```bash\n{text}\n```\n")
    assert [each.words for each in found] == expected


@pytest.mark.parametrize(
    "block",
    [
        "```text\nmake run\n```", "```python\nimport x\n```", "```\nrun  fedavg\nupdates 3\n```",
        "```\nhttps://x {\n tls a\n}\n```", "make run", "```nginx\nls\n```",
    ],
)  # fmt: skip
def test_other_blocks_hold_no_commands(block, tmp_path):
    assert commands(tmp_path, block) == []


# What is wrong


WRONG = [
    ("python run.py algorithm=fedavg_f2j", "fedavg_f2j"),
    ("python run.py nodez=3", "nodez"),
    ("python run.py compression=topk compression.densty=0.1", "densty"),
    ("python run.py -m seed=0,1 model=lenet6,mlp", "lenet6"),
    ("python run.py resume=x nodes=2", "nodes=2"),
    ("python run.py new", "one name"),
    ("python run.py predict RUN", "required: file"),
    ("python run.py compare goal=0.95", "METRIC:VALUE"),
    ("python run.py start=RUN round=3", "round"),
    ("python -m edgewire.report.table x --no-such-option", "--no-such-option"),
    ("python -m edgewire.report.curves x --smooth zero --out y.png", "smooth"),
    ("python -m edgewire.report.tables x", "No module named edgewire.report.tables"),
    ("python -m json.tool x", "no module json.tool"),
    ("python other.py", "only run.py"),
    ("make rum", "rum"),
    ("pip install '.[developer]'", "developer"),
    ("edgewire run", "edgewire is no program"),
    ("flwr run . --run-config 'overrides=\"nodez=3\" output=\"x\"'", "nodez"),
]  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize(("text", "says"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_command_is_an_error_with_page_and_line(text, says, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nText.\n\n```bash\nmake run\n{text}\n```\n")
    (line,) = check_page(page)
    assert line.startswith(f"{page}:7: ")
    assert says in line.partition(":7: ")[2]
    assert "\n" not in line


def test_an_open_quote_and_wrong_syntax_are_errors(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```bash\nls 'a\n```\n\n```bash\nif ls; then\n```\n")
    assert [re.match(rf"{page}:(\d+): ", line)[1] for line in check_page(page)] == ["2", "6"]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "text",
    [
        "python run.py -m algorithm=fedavg,fedavg_f2i seed=0,1,2",
        "python run.py -m experiment=esgd_baselines dataset.download=true",
        "python run.py resume=outputs/DATE/TIME engine.workers=2",
        "python run.py predict RUN FILE",
        "python run.py export RUN onnx",
        "python run.py compare network=lora goal=accuracy:0.95",
        "python run.py start=RUN rounds=10",
        "python -m edgewire.report.table multirun/DATE/TIME",
        "python -m edgewire.deploy.node ... --app 5ee960fbac6b...",
        "python -m edgewire.simulation PATH --nodes 10",
        "flwr run . --stream --run-config 'overrides=\"nodes=3\" output=\"x\"'",
        "python run.py --config-dir my/conf experiment=x",
        "python -m docs.configuration",
        "sudo cp a b",
        "python run.py --config-path x/.hydra --config-name config",
    ],
)  # fmt: skip
def test_a_right_command_is_no_mistake(text, tmp_path):
    (command,) = commands(tmp_path, f"```bash\n{text}\n```\n")
    check_command(command)


def test_the_commands_of_the_tutorial_are_run():
    """All pages hold commands; the tutorial's are run, but those that do not end."""
    assert ROOT / TUTORIAL in pages()
    assert {"README.md", "deploy.md"} <= {page.name for page in pages()}
    tutorial = [b for b in blocks(ROOT / TUTORIAL) if b.is_shell]
    left_out = [c.text for b in tutorial for c in b.commands() if NOT_RUN.match(c.text)]
    assert left_out == ["python -m edgewire.report runs/long --watch"]


def test_the_readme_shows_what_the_first_command_of_the_tutorial_prints():
    """The tutorial's commands are run, and what they print is compared with the page."""
    (shown,) = [b for b in blocks(ROOT / "README.md") if "energy\n" in b.text]
    (printed,) = [b for b in blocks(ROOT / TUTORIAL) if "energy\n" in b.text]
    assert shown.text == printed.text


def test_the_command_prints_the_mistakes(tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```\nmake run\nsudo ls\nmake rum\n```\n")
    monkeypatch.chdir(tmp_path)
    assert main([str(page)]) == 1
    printed = capsys.readouterr().out
    assert f"{page}:4: make rum: " in printed
    page.write_text("```\nmake run\n```\n")
    assert main([str(page)]) == 0
    assert "0 mistakes" in capsys.readouterr().out


# Running a page


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Replace the copied project with a folder of one file; return the page's path."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("")
    monkeypatch.setattr("docs.run_page.ROOT", project)
    return tmp_path / "page.md"


def mistakes_of(page):
    with page_run(page, re.compile("ssh")) as mistakes:
        return mistakes()


def test_a_page_is_run_in_a_copy_and_its_output_compared(small):
    small.write_text(
        "```bash\nls\ncd . && export A=7\n```\n```text\nfile\n```\n\n```bash\necho $A 3.5 kB left\n"
        "ssh never\n```\n```bash\nexport B=1\necho $A 3.5 kB left, $PWD\n```\n"
        "```text\n9 81 MB left, ...edgewire\nother\n```\n"
    )
    assert mistakes_of(small) == [f"{small}:19: not printed: other"]
    assert not (small.parent / "project" / "log").exists()


def test_a_failing_command_is_named_and_left_processes_end(small):
    small.write_text("```bash\nsleep 600 &\n```\n\n```bash\nls /nowhere\n```\n")
    (line,) = mistakes_of(small)
    assert line.startswith(f"{small}:6: exit code ")
    assert "/nowhere" in line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sent up 1.44 MB; 5.41 times", True), ("sent up    2 kB; 3 times", True),
        ("sent down 1.44 MB; 5.41 times", False), ("sent ... times", True), ("", True),
        ("sent ... rounds", False), ("up 1 kB", True),
    ],
)  # fmt: skip
def test_lines_are_compared_without_their_numbers(line, expected):
    assert is_printed(line, "first\nsent up    1.4 MB; 12 times as much  \n") == expected


@pytest.mark.system
def test_all_pages_are_right(capsys):
    others = [page for page in pages() if page.name != "tutorial.md"]  # `make docs-check` runs it
    code = main(["--no-run", *map(str, others)])
    assert code == 0, capsys.readouterr().out
