# `make demo` and `make test` set everything up by themselves; a second call reuses what is there.
# EXTRA=none|cpu|cuda12|cuda13 overrides the backend; PYTHON=/path/to/python3 the interpreter.

ifndef EXTRA
EXTRA := $(shell sh .ci/setup.sh backend)
endif
PY := .venv/bin/python
READY := .venv/ready-$(EXTRA)
PYTEST_ARGS ?=
BENCH_ARGS ?=
CONFORMANCE_ARGS ?=
LAB_ARGS ?=
UI_ARGS ?=

.PHONY: help setup demo lab test ui lint format bench conformance notebooks clean force
help:
	@echo "make demo       the quick-start notebook, run and printed here"
	@echo "make lab        the notebooks in JupyterLab, the quick start first"
	@echo "make test       linters, types and tests (PYTEST_ARGS=... goes to pytest)"
	@echo "make ui         the views, in a browser and by their modules (UI_ARGS=... goes to pytest)"
	@echo "make lint       linters and types only"
	@echo "make format     let ruff reformat and fix the code"
	@echo "make bench      decode benchmark (BENCH_ARGS=... goes to it)"
	@echo "make conformance  others' clients and test suites, a load and a fuzz for the endpoint"
	@echo "make notebooks  run the notebooks and keep their outputs; redraw the pictures"
	@echo "make setup      the set-up alone"
	@echo "make clean      remove .venv and caches"

# A checkout that was moved or copied is set up again: its environment points to the old place.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): force
endif
$(READY): pyproject.toml .ci/setup.sh
	@PYTHON="$(PYTHON)" sh .ci/setup.sh install "$(EXTRA)" "$(READY)"
force:

setup: $(READY)

demo: $(READY)
	@$(PY) notebooks/demo.py

lab: $(READY)
	$(PY) -m jupyterlab $(LAB_ARGS) notebooks/01_quickstart.ipynb

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: lint
	$(PY) -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

ui: $(READY)
	$(PY) -m tests.ui $(UI_ARGS)

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: $(READY)
	$(PY) -m benchmarks.decode $(BENCH_ARGS)

conformance: $(READY)
	$(PY) -m tests.conformance $(CONFORMANCE_ARGS)

notebooks: $(READY)
	$(PY) notebooks/demo.py --save notebooks/*.ipynb
	$(PY) docs/picture.py

clean:
	rm -rf .venv .venv-conformance tests/conformance/node_modules tests/ui/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
