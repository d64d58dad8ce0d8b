"""`python -m edgewire.report.advise`: which settings reach a goal soonest on a given link."""
