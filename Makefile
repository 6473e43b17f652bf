# Every target sets up .venv by itself. PYTHON is the interpreter that makes it (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := src/tensorgraft/frontends/torch/dispatch/native.cpp
NATIVE := $(VENV)/.native
CONSTRAINTS ?= constraints.txt
CONFORMANCE ?= ../shared/conformance
PYTEST_ARGS ?= -n auto --dist worksteal

# What a test's processes import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-parallel test quick test-all lint format bench conformance source-conformance fuzz ecosystem port export-programs faults long-runs hostile-files harness versions newest dist dist-check gpu docs setup clean

demo: $(NATIVE)
	$(BIN)/python examples/demo.py

# One device against eight simulated ones, of one process and of two, placed in several ways.
demo-parallel: $(STAMP)
	$(BIN)/python examples/parallel.py

# The tests compare with CPU PyTorch: JAX too computes on the CPU, whatever else there is.
test: export JAX_PLATFORMS = cpu
test: $(NATIVE)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What shows most mistakes soonest: the hub, arrays and the dispatch of PyTorch's operators, on NumPy alone.
quick: export JAX_PLATFORMS = cpu
quick: $(STAMP)
	$(BIN)/python -m pytest tests/hub tests/frontends/array_api tests/frontends/torch/dispatch -k numpy -r fE $(PYTEST_ARGS)

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

bench: $(NATIVE)
	$(BIN)/python -m benchmarks.run --plot out/benchmarks.png --page docs/benchmarks.md

# PyTorch's own test databases, and primitives in every dtype, on every backend, whole; `make test` runs a sample.
# Writes docs/conformance.md. Hours; CONFORMANCE_ARGS="--backends=numpy" for a part of it: what was run before stays.
conformance: export JAX_PLATFORMS = cpu
conformance: $(STAMP)
	$(BIN)/python -m pytest tests/conformance tests/hub/test_primitives.py --conformance=full -q --no-header --tb=no -r fE $(PYTEST_ARGS) $(CONFORMANCE_ARGS); \
	  status=$$?; $(BIN)/python -m tests.frontends.tensorflow.raw_operations >/dev/null; $(BIN)/python -m tests.conformance.page; \
	  exit $$status

# Models of the harness as source of other frameworks, each converted and compared. Writes docs/conformance.md; an hour for
# each target. SOURCE_ARGS="--onto numpy --every 3" for a part of it: what was run before stays.
source-conformance: export JAX_PLATFORMS = cpu
source-conformance: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group conformance
	$(BIN)/python -m tests.conformance.source_models --harness $(CONFORMANCE) $(SOURCE_ARGS)
	$(BIN)/python -m tests.conformance.page


# Random programs, N of KIND (torch, jax, array_api, ..., or all), with new seeds; FUZZ_ARGS="--count" for a run that is on
# docs/fuzzing.md.
N ?= 10000
KIND ?= all
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(KIND) -n $(N) --jobs 2 $(FUZZ_ARGS); status=$$?; $(BIN)/python -m tests.fuzz.page; exit $$status

# Other people's programs and test suites, unmodified, natively and on devices. Writes docs/ecosystem.md; hours on JAX.
# ECOSYSTEM_ARGS="--areas torch --suites timm --on numpy --every 10" for a part of it.
ecosystem: export JAX_PLATFORMS = cpu
ecosystem: $(STAMP)
	$(BIN)/python -m ecosystem all $(ECOSYSTEM_ARGS)

# Weights carried over between networks that other people wrote, and differences planted in some of ours. Writes
# docs/port_pairs.md; half an hour. PORT_ARGS="--pairs --only BERT" for a part of it: what was judged before stays.
port: export JAX_PLATFORMS = cpu
port: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group port
	$(BIN)/python -m ecosystem.port $(PORT_ARGS)

# Forty programs as files of other runtimes, beside what other exporters write. Writes docs/export_programs.md; an hour.
# EXPORT_ARGS="--formats onnx --programs BERT" for a part of it: what was run before stays.
export-programs: export JAX_PLATFORMS = cpu
export-programs: $(STAMP)
	$(BIN)/python -m ecosystem.export $(EXPORT_ARGS)

# Ten thousand exceptions at the n-th thing that a backend does, and 20,000 steps of training: both write docs/faults.md.
faults: export JAX_PLATFORMS = cpu
faults: $(STAMP)
	$(BIN)/python -W ignore -m tests.faults --faults 10000; status=$$?; $(BIN)/python -m tests.faults.page; exit $$status

long-runs: export JAX_PLATFORMS = cpu
long-runs: $(STAMP)
	$(BIN)/python -m tests.faults.long_runs --steps 20000; status=$$?; $(BIN)/python -m tests.faults.page; exit $$status

# A million mutated files of every format that is read. Adds to tests/hostile/runs.json, writes docs/hostile_files.md; what
# was done with a seed stays. `make test` has a sample. HOSTILE_ARGS="--jobs 2 --files 100000" for a part of it.
hostile-files: $(STAMP)
	$(BIN)/python -m tests.hostile --files 1000000 --seed 1 --page $(HOSTILE_ARGS)

# Other people's models and programs. The harness lies outside this repository.
harness: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group conformance
	$(BIN)/python tests/conformance/harness.py --harness $(CONFORMANCE)

# A sample of the tests in fresh environments: Pythons, and releases of each framework. Writes docs/versions.md; an hour,
# and 20 GB of disk while it runs. VERSIONS_ARGS="--only torch" for a part of it: what was run before stays.
versions: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	$(BIN)/python -m tests.versions $(VERSIONS_ARGS)

# README's programs and part of the suite on the newest Python of this machine, with the newest releases for it: eight
# minutes. NEWEST_ARGS=--today for what the index has now, in place of tests/versions/newest.json.
newest: export JAX_PLATFORMS = cpu
newest: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	$(BIN)/python -m tests.versions.newest_here $(NEWEST_ARGS)

# A sample of everything where JAX computes on a GPU. Writes docs/gpu.md, which says "not run" where there is none.
gpu: $(STAMP)
	$(BIN)/python -m tests.accelerators --platform gpu

# The wheel and the source distribution, in dist/, looked through.
dist: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	$(BIN)/python -m tests.distribution --build

# The wheel in an empty environment with each extra, README's programs there, and mypy and pyright on a user's program.
dist-check: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group release
	$(BIN)/python -m tests.distribution $(DIST_ARGS)

# The site, in out/site. Programs of its pages are run; what they gave is kept until a page or the package changes.
# Anything that fails, an output that is missing and a link to nowhere are errors. DOCS_ARGS="serve" to look at it.
docs: export JAX_PLATFORMS = cpu
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --group docs
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(or $(DOCS_ARGS),build)

setup: $(NATIVE)

# pip would compile 24,000 files, of which a quarter is imported: that takes longer than the rest.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) pip
	$(BIN)/python -m pip install --quiet --no-compile -c $(CONSTRAINTS) -e . --group dev
	touch $@

# The native kernels of eager operators; without a C++ compiler those in Python serve alone.
$(NATIVE): $(STAMP) $(KERNELS)
	-$(BIN)/tensorgraft doctor --build >/dev/null
	touch $@

clean:
	rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
