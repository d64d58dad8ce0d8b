"""`python -m edgewire.engines.keep FOLDER -- WORDS`: makes a run, and resumes it until it is done.

The run is that of `python run.py WORDS`, in the folder FOLDER. In place of words, @FILE names a
file that holds them, in a shell's syntax. If the command fails, because its
server or its ServerApp was killed for example, it resumes the run after a pause. The same command
goes on with a run that an earlier one has left, as after a restart of the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from edgewire.machine.errors import Ended
from edgewire.machine.job import CHECKPOINT, PLACE
from edgewire.machine.processes import orderly_exit

PROG = "python -m edgewire.engines.keep"
RUN = Path(__file__).parents[2] / "run.py"
RESULT, HISTORY = "result.json", "history.jsonl"  # files of a run
PAUSE, LONGEST = 5.0, 60.0  # seconds before the run is resumed: doubled after each vain attempt
MOST = 8  # attempts without a new row of the history, which take about five minutes
MISTAKE, STOPPED = 2, 130  # exit codes after which the run is not resumed


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and resume a run; return the exit code of its last command, or 143 after SIGTERM."""
    about = (__doc__ or "").partition("\n\n")[2]
    made = argparse.ArgumentParser(prog=PROG, description=about, fromfile_prefix_chars="@")
    vars(made)["convert_arg_line_to_args"] = partial(shlex.split, comments=True)
    made.add_argument("folder", type=Path, metavar="FOLDER", help="the run's folder")
    made.add_argument("words", nargs="*", metavar="WORDS", help="the words for run.py, after --")
    try:
        asked = made.parse_args(arguments)
    except ValueError as error:  # of `shlex`
        made.error(f"{error} in the file of words")
    try:
        with orderly_exit():
            return keep(asked.folder.absolute(), asked.words)
    except Ended as error:
        return int(error.code or 0)


def keep(folder: Path, words: Sequence[str]) -> int:
    """Make the run in `folder`, and resume it until it is done; return its last exit code."""
    vain = 0
    while True:
        if is_over(folder):
            print(f"{folder} holds a run that is over", flush=True)
            return 0
        before = rows_of(folder)
        anew = [*words, f"hydra.run.dir={folder}"]
        code = run([f"resume={folder}"] if is_unfinished(folder) else anew)
        if code in (0, MISTAKE, STOPPED) or is_over(folder):
            return code
        vain = 0 if rows_of(folder) > before else vain + 1
        if vain == MOST:
            print(f"{MOST} attempts gave no new round: the run is left as it is", file=sys.stderr)
            return code
        pause = min(PAUSE * 2 ** max(vain - 1, 0), LONGEST)
        print(f"exit code {code}: the run is resumed in {pause:g} s", file=sys.stderr, flush=True)
        time.sleep(pause)


def run(words: Sequence[str]) -> int:
    """Run `python run.py` with these words; return its exit code. It ends if this process must."""
    with subprocess.Popen([sys.executable, str(RUN), *words]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to both
            process.wait()
            return STOPPED
        except Ended:
            process.terminate()
            process.wait()
            raise


def is_unfinished(folder: Path) -> bool:
    """Return whether `folder` has files of a run that can be resumed."""
    return any((folder / name).is_file() for name in (CHECKPOINT, PLACE))


def is_over(folder: Path) -> bool:
    """Return whether a run has a result, and nothing to resume; a diverged run has nothing, too."""
    with suppress(OSError, ValueError, AttributeError):
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return bool(result.get("diverged")) or not is_unfinished(folder)
    return False


def rows_of(folder: Path) -> int:
    """Return the size of the run's history in bytes: it grows with each round."""
    with suppress(OSError):
        return (folder / HISTORY).stat().st_size
    return 0


if __name__ == "__main__":
    sys.exit(main())
