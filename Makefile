# Everything runs inside .venv, which the first target makes. `make run`, `make test` are all the set-up there is.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export OMP_NUM_THREADS := 1
# Where this is set, every process would compile torch and Flower anew, five seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-system test-all check docs-check fuzz bench wheel clean

# Without ARGS: what compression costs on a small task. With ARGS: one run, ARGS="algorithm=esgd".
run: $(VENV)/ready
	$(PY) run.py $(or $(ARGS),compare)

# Three processes for two cores, because tests wait; an idle process takes tests from the others.
PYTEST := $(PY) -m pytest -n 3 --dist worksteal

# A case that takes more than 3 s of CPU time fails the rule: make it smaller, or mark it `system`.
test: $(VENV)/ready
	$(PYTEST) -m "not system" --most-seconds 3

# What `make test` leaves out: Ray, Flower's own nodes, wheels, killed processes, and further cases.
test-system: $(VENV)/ready
	$(PYTEST) -m system

# Both in one session, whose processes import and collect the tests once.
test-all: $(VENV)/ready
	$(PYTEST) --most-seconds 3

check: $(VENV)/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Every command in the pages: runs those of the tutorial, checks the others. It takes four minutes.
docs-check: $(VENV)/ready
	$(PY) -m docs.check

# The long tests: 100,000 mutated payloads with right checksums, spread over all decoders; 100,000
# hostile trees of texts in configurations; 2,000 damaged folders of runs, read by all reports; and
# 10,000 mutated replies for each preset and strategy, which takes hours (REPLIES=500 for fewer).
REPLIES ?= 10000
fuzz: export HYPOTHESIS_PROFILE := many
fuzz: $(VENV)/ready
	$(PY) -m pytest tests/compression/test_fuzz.py --mutations 100000
	$(PY) -m pytest tests/conf/test_fuzz_trees.py --trees 100000
	$(PY) -m pytest tests/report/test_fuzz_folders.py --folders 2000
	$(PY) -m pytest tests/test_fuzz_replies.py --replies $(REPLIES) -n auto

bench: $(VENV)/ready
	$(PY) -m papers.benchmarks.selection
	$(PY) -m papers.benchmarks.payload
	$(PY) -m papers.benchmarks.engine
	$(PY) -m papers.benchmarks.steps

# The library alone, for other people's apps: compression/README.md.
wheel: $(VENV)/ready
	PATH="$(VENV)/bin:$$PATH" uv build --quiet --wheel --out-dir dist compression
	@ls dist/*.whl

# uv makes the environment in under a minute; where it is not installed, the new environment gets its own.
# A uv within the old environment counts as none: it would be removed before it is used.
$(VENV)/ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "python3 (3.11 to 3.14) is needed; or give make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' \
		|| { echo "Python 3.11 to 3.14 is needed, this is $$($(PYTHON) -V); give make PYTHON=python3.12, say" >&2; exit 1; }
	@set -e; UV=$$(command -v uv || true); case "$$UV" in ""|"$(CURDIR)/$(VENV)/"*) UV=$(VENV)/bin/uv; \
		$(PYTHON) -m venv --clear $(VENV); $(PY) -m pip install --quiet uv;; \
		*) rm -rf $(VENV); uv venv --quiet --python $(PYTHON) $(VENV);; esac; \
		set -x; $$UV pip install --quiet --python $(PY) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist outputs multirun .mypy_cache .ruff_cache .pytest_cache .hypothesis
