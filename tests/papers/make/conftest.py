"""A fake repository folder that holds only what the tests define."""

import pytest

from papers.make.results import BEGIN, END
from tests.papers.make.made_pages import ACCURACIES, PAGE, define, run


@pytest.fixture
def root(tmp_path):
    """Return a repository folder with the experiments `e` and `f`, without runs or pages."""
    for folder in ("docs", "papers/experiments", "papers/pages", "papers/results"):
        (tmp_path / folder).mkdir(parents=True)
    for name in "ef":
        (tmp_path / "papers" / "experiments" / f"{name}.yaml").write_text("")
    (tmp_path / "docs" / "results.md").write_text(f"# By hand\n\n{BEGIN}\n{END}\n\nMore.\n")
    return tmp_path


@pytest.fixture
def ran(root):
    """Return `root` with the definition of a page, and with runs for two rows of its table."""
    define(root, PAGE)
    run(root, ACCURACIES)
    return root
