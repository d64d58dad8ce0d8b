"""`python -m report.advise`: which settings reach a goal soonest on a given link."""
