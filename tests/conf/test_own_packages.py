"""Packages of the user's own are found by one rule, compared, and imported if they may be."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.load import load_config, run_config
from edgewire.conf.own_packages import (
    fingerprint,
    import_packages,
    look_in,
    qualified,
    source_files,
)
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import NodeGrants
from tests.conf.hostile import plain, submitted
from tests.runs import composed

LOUD = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"
FILES = {
    "whole/__init__.py": "from whole.parts import table\n",
    "whole/parts.py": "def table(): ...\n",
    "whole/.hidden/x.py": "",
    "whole/test_parts.py": "assert False",
    "whole/parts_test.py": "assert False",
    "whole/notes.txt": "no source",
    "single.py": LOUD + "def net(): ...\n",
    "folder/x.py": "",
    "raises.py": "raise RuntimeError('first line\\nsecond line')",
    "exits.py": "import sys; sys.exit(0)",
    "broken.py": "def (",
    "needs.py": "import no_such_module",
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write the packages into a folder outside of Python's path; yield the folder."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("EDGEWIRE_PACKAGES", str(tmp_path))
    fingerprint.cache_clear()
    yield tmp_path
    fingerprint.cache_clear()
    for name in {each.partition("/")[0].removesuffix(".py") for each in FILES}:
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[module]


def refused(words, machine=None):
    with pytest.raises(ConfigError) as caught:
        import_packages(words, machine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(name=st.text().filter(lambda text: not text.partition("@")[0].isidentifier()))
def test_anything_but_a_name_is_refused_in_one_line(name):
    for machine in (None, NodeGrants(allow=(name,))):
        assert "give the name with which Python imports" in refused([name], machine)


WRONG = {
    "os": "Python or EdgeWire has this name",
    "class": "give the name with which Python imports a package",
    "whole.parts": "without a path",
    "absent": "there is no absent here: it is looked up on Python's path (PYTHONPATH=FOLDER)",
    "folder": "the folder folder has no __init__.py",
    "raises": "its import failed: RuntimeError: first line",
    "exits": "its import failed: SystemExit: 0",
    "broken": "its import failed: SyntaxError",
    "needs": "its import failed: ModuleNotFoundError: No module named 'no_such_module'",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_package_that_cannot_be_imported_is_one_line(name, own):
    for _ in range(2):  # also in the next run of this process
        assert WRONG[name] in refused([name])


def test_pythons_path_comes_before_the_other_folders_in_their_order(own, monkeypatch):
    for name in ("on_path", "first", "second"):
        (own / name).mkdir()
    (own / "on_path" / "whole.py").write_text("")
    (own / "first" / "single.py").write_text("")
    (own / "second" / "single.py").write_text("")
    (own / "second" / "numpy.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(own / "on_path")
    look_in([own / "first", own / "second", own])
    assert os.environ["EDGEWIRE_PACKAGES"].startswith(str(own / "first"))
    before = sys.path[:]
    assert list(source_files("whole").values()) == [own / "on_path" / "whole.py"]
    assert sys.path == before
    assert list(source_files("single").values()) == [own / "first" / "single.py"]
    assert sys.path == [*before, str(own / "first")]
    assert source_files("raises") == {"raises.py": own / "raises.py"}
    assert import_packages(["numpy"]) == ("numpy",)  # the installed one


def test_the_fingerprint_is_that_of_the_source_files(own):
    assert set(source_files("whole")) == {"whole/__init__.py", "whole/parts.py"}
    first = fingerprint("whole")
    import_packages(["whole"])  # it leaves compiled files
    (own / "whole" / "notes.txt").write_text("changed")
    changes = [
        lambda: (own / "whole" / "parts.py").write_text("def table(): return 1\n"),
        lambda: (own / "whole" / "more.py").write_text(""),
        lambda: (own / "whole" / "more.py").rename(own / "whole" / "other.py"),
    ]
    found = [first]
    assert fingerprint("whole") == first, "a process keeps the version that it has imported"
    fingerprint.cache_clear()
    assert fingerprint("whole") == first
    for change in changes:
        change()
        fingerprint.cache_clear()
        found.append(fingerprint("whole"))
    assert len(set(found)) == 4


def test_another_version_is_refused_before_its_import(own):
    """The run's text holds the fingerprint; a node and a server compare it."""
    values = run_config(composed("packages=[single]"))
    assert load_config(values, 2).packages == [f"single@{fingerprint('single')}"]
    del sys.modules["single"]
    (own / "imported").unlink()
    (own / "single.py").write_text(FILES["single.py"] + "# changed\n")
    fingerprint.cache_clear()
    values = {**values, "config": f" {values['config']}"}  # not the text that this machine composed
    with pytest.raises(ConfigError, match="another version of single than the command"):
        load_config(values, 2, {"allow": "single"})
    assert not (own / "imported").exists()


@pytest.mark.parametrize("allow", ["", "singl", "single.net", "other", "*"])
def test_a_submitted_run_imports_no_package_that_is_not_allowed(allow, own):
    values = submitted({**plain(), "packages": ["single"]})
    with pytest.raises(ConfigError, match="names packages that this machine allows"):
        load_config(values, 2, {"allow": allow})
    assert not (own / "imported").exists()
    assert load_config(values, 2, {"allow": "other single"}).packages == ["single"]


def test_a_submitted_run_may_name_the_apps_own_packages():
    assert load_config(submitted({**plain(), "packages": ["edgewire"]}), 2).packages == ["edgewire"]


def test_the_text_of_an_import_error_stays_on_this_machine(own, caplog):
    told = refused(["raises"], NodeGrants(allow=("raises",)))
    assert "first line" not in told
    assert "RuntimeError; this machine's own log says more" in told
    assert "RuntimeError: first line" in caplog.text


@pytest.mark.parametrize("packages", ["mine", 3, {"mine": 1}, [3], [["mine"]], None, "${lr}"])
def test_a_hostile_value_is_one_line(packages):
    with pytest.raises(ConfigError) as caught:
        load_config(submitted({**plain(), "packages": packages}), 2)
    assert "\n" not in str(caught.value)


def test_a_name_without_a_dot_is_looked_up_in_the_packages(own):
    names = import_packages(["single", "whole"])
    node = {"_target_": "net", "inner": [{"_target_": "table", "x": 1}], "y": {"_target_": "a.b"}}
    assert qualified("model", node, names) == {
        "_target_": "single.net",
        "inner": [{"_target_": "whole.table", "x": 1}],
        "y": {"_target_": "a.b"},
    }
    with pytest.raises(ConfigError, match=r"model\._target_=tabel: it is in none of packages="):
        qualified("model", {"_target_": "tabel"}, names)
