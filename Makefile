# Every target sets up .venv by itself. PYTHON is the interpreter that makes it (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS ?= constraints.txt
CONFORMANCE ?= ../shared/conformance
PYTEST_ARGS ?= -n auto --dist worksteal

# What a test's processes import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-parallel test test-all lint format bench conformance ecosystem hostile-files harness setup clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# One device against eight simulated ones, of one process and of two, placed in several ways.
demo-parallel: $(STAMP)
	$(BIN)/python examples/parallel.py

# The tests compare with CPU PyTorch: JAX too computes on the CPU, whatever else there is.
test: export JAX_PLATFORMS = cpu
test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Everything: eager operations compiled, PyTorch's databases whole, on every backend. Hours.
test-all: export JAX_PLATFORMS = cpu
test-all: export TENSORGRAFT_EAGER = compiled
test-all: $(STAMP)
	$(BIN)/python -m pytest --slow --conformance=full $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run --plot out/benchmarks.png --page docs/benchmarks.md

# PyTorch's own test databases, and primitives in every dtype, on every backend, whole; `make test` runs a sample.
# Writes docs/conformance.md. Hours; CONFORMANCE_ARGS="--backends=numpy" for a part of it: what was run before stays.
conformance: export JAX_PLATFORMS = cpu
conformance: $(STAMP)
	$(BIN)/python -m pytest tests/conformance tests/hub/test_primitives.py --conformance=full -q --no-header --tb=no -r fE $(PYTEST_ARGS) $(CONFORMANCE_ARGS); \
	  status=$$?; $(BIN)/python -m tests.frontends.tensorflow.raw_operations >/dev/null; $(BIN)/python -m tests.conformance.page; \
	  exit $$status

# Other people's programs and test suites, unmodified, natively and on devices. Writes docs/ecosystem.md; hours on JAX.
# ECOSYSTEM_ARGS="--areas torch --suites timm --on numpy --every 10" for a part of it.
ecosystem: export JAX_PLATFORMS = cpu
ecosystem: $(STAMP)
	$(BIN)/python -m ecosystem all $(ECOSYSTEM_ARGS)

# A million mutated files of every format that is read. Adds to tests/hostile/runs.json, writes docs/hostile_files.md; what
# was done with a seed stays. `make test` has a sample. HOSTILE_ARGS="--jobs 2 --files 100000" for a part of it.
hostile-files: $(STAMP)
	$(BIN)/python -m tests.hostile --files 1000000 --seed 1 --page $(HOSTILE_ARGS)

# Other people's models and programs. The harness lies outside this repository.
harness: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group conformance
	$(BIN)/python tests/conformance/harness.py --harness $(CONFORMANCE)

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) pip
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e . --group dev
	touch $@

clean:
	rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
