# `make help` lists the commands. Each one first sees to it that .venv holds what it needs; PYTHON=... names
# the Python to make it from.

.DEFAULT_GOAL := help
.PHONY: help fit test test-all check lint types docs serve bench clean venv-fit venv-test venv-dev venv-bench
.NOTPARALLEL:

PYTHON ?=
export PYTHON
run := .venv/bin/python
# extra arguments for pytest: make test ARGS="-k decay -x"
ARGS ?=
WORKERS ?= auto

# Most of the time of the tests goes into compiling: without XLA's optimisations they take a fifth less. `make test-all`
# has them.
QUICKLY := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true

# One BLAS thread a process: small matrices are many times slower when threads fight for the cores.
export OPENBLAS_NUM_THREADS ?= 1

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

fit: venv-fit ## fit the hare and lynx data: prints the report, writes hare_lynx.png
	$(run) examples/hare_lynx.py

test: venv-test ## the tests, examples and documentation snippets, without the slow ones
	XLA_FLAGS="$(QUICKLY) $(XLA_FLAGS)" $(run) -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

test-all: venv-test ## all tests
	$(run) -m pytest -n $(WORKERS) $(ARGS)

check: lint types ## style, types and documentation, its tutorials in a short setting: all that needs no test run
	XLA_FLAGS="$(QUICKLY) $(XLA_FLAGS)" $(MAKE) docs TUTORIALS=--quick

lint: venv-dev
	$(run) -m ruff check .
	$(run) -m ruff format --check .

types: venv-dev
	$(run) -m pyright --pythonpath $(run)

docs: venv-dev ## build the documentation into site/, executing the tutorials; a broken link fails
	$(run) docs/build_tutorials.py $(TUTORIALS)
	$(run) -m zensical build --strict --clean
	$(run) docs/check_links.py site

serve: venv-dev ## show the documentation while writing it
	$(run) docs/build_tutorials.py
	$(run) -m zensical serve

bench: venv-bench ## run the benchmarks, one after the other
	@for name in core batches work_precision structured nonlinear fit nets; do \
	    echo "== benchmarks/$$name.py"; $(run) "benchmarks/$$name.py" || exit 1; \
	done

venv-fit venv-test venv-dev venv-bench: venv-%:
	@scripts/venv $*

clean: ## remove .venv and everything that was built
	rm -rf .venv site build dist docs/tutorials .pytest_cache .ruff_cache .cache hare_lynx.png
	find sciml tests examples docs scripts -name __pycache__ -type d -prune -exec rm -rf {} +
