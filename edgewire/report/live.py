"""Says which command shows a run while it goes on; this was a command of an older release."""

import sys

if __name__ == "__main__":
    sys.exit("error: report.live is now: python -m edgewire.report RUN --watch")
