"""Old runs and apps are removed, but nothing that a run still needs."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.server.run_files import DAY, remove_old
from edgewire.deploy.server.server import days

STARTS = st.integers(0, 10**9).map(lambda start: float(start))  # also of a clock that is wrong
RUN = st.tuples(
    st.sampled_from(["finished", "interrupted", "RuntimeError: x", None, [], "damaged"]),
    st.booleans(),
    st.integers(0, 60),
)
APP = st.tuples(st.integers(0, 60), st.sampled_from(["finished", "running", "pending", None]))


def written(folder, text, when):
    folder.mkdir(parents=True)
    file = folder / "result.json"
    file.write_text(text)
    for each in (file, folder):
        os.utime(each, (when, when))


@given(
    start=STARTS,
    runs=st.lists(RUN, max_size=12),
    apps=st.lists(APP, max_size=8),
    kept=st.tuples(st.none() | st.integers(0, 60), st.none() | st.integers(0, 8)),
)
def test_what_is_old_goes_and_what_is_needed_stays(start, runs, apps, kept):
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        finished = {}
        for at, (ended, checkpoint, day) in enumerate(runs):
            folder = home / "runs" / f"{at}"
            text = "{" if ended == "damaged" else json.dumps({"ended": ended})
            written(folder, "[]" if ended == [] else text, start + day * DAY)
            if checkpoint:
                (folder / "checkpoint").touch()
            elif ended == "finished":
                finished[f"{at}"] = day
        state, needed = [], set()
        for at, (day, status) in enumerate(apps):
            folder = home / "apps" / f"edgewire.edgewire.0.1.0.{at:08x}"
            written(folder, "", start + day * DAY)
            if status is not None:
                status_of_run = SimpleNamespace(status=status)
                state.append(SimpleNamespace(fab_hash=f"{at:08x}{'0' * 56}", status=status_of_run))
            if status in ("running", "pending"):
                needed.add(folder.name)
        before = {each.name for each in (home / "apps").glob("*")}
        age, most = kept
        given_state = SimpleNamespace(get_run_info=lambda: state)
        remove_old(home / "runs", home / "apps", age, most, given_state)
        gone = {f"{at}" for at in range(len(runs))} - {each.name for each in home.glob("runs/*")}
        newest = max(finished.values(), default=0)
        assert gone == {
            at for at, day in finished.items() if age is not None and newest - day > age
        }
        left = {each.name for each in home.glob("apps/*")}
        assert needed <= left <= before
        if most is None:
            assert left == before
        else:
            assert len(left - needed) <= most <= max(len(left), most)
            assert len(left) >= min(most, len(before))
            oldest = min([apps[int(each[-8:], 16)][0] for each in left - needed], default=60)
            assert all(apps[int(each[-8:], 16)][0] <= oldest for each in before - left)


def test_days_are_written_as_in_30d():
    assert (days("30d"), days("0.5"), days("7")) == (30, 0.5, 7)
