"""A new run moves an earlier result aside; if a run fails to resume, its result is moved back."""

import pytest

from edgewire.command import job


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
