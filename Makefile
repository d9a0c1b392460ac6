# Targets run in $(VENV), which the first one that needs it creates. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Install packages into $(VENV), or into another environment: with uv in seconds, or else with pip in minutes.
install = uv=$$(command -v uv || command -v $(BIN)/uv); python=$(or $(2),$(VENV))/bin/python; \
  if [ -n "$$uv" ]; then "$$uv" pip install --quiet --python $$python $(1); \
  else $$python -m pip install --quiet --disable-pip-version-check $(1); fi
COVERAGE_FLOOR := 91
SEEDS ?= 10000
# What runs with sanitizers, and under valgrind, which takes 50 times as long.
FUZZ_SECONDS ?= 600
# The first codecs of chains, by their numbers in kernel.h; 0 is none. Each is fuzzed for the same time.
FUZZ_CODECS ?= 0 1 2 3 4 5 6 7 8
NATIVE_TESTS ?= tests/kernel tests/codecs
# These count reads, and are not run where limits are so small that small values take all paths.
WITHOUT_LIMITS = --deselect tests/kernel/test_traffic.py::test_counts_are_those_of_python \
  --deselect tests/kernel/test_large_shards.py::test_many_small_inner_chunks_are_read_at_once
MEMCHECK_TESTS ?= tests/kernel/test_crc32c.py tests/kernel/test_symbols.py
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' zarrasync/__init__.py)

# Platforms of wheels, and the target of the compiler for each.
WHEELS = \
  manylinux_2_17_x86_64.manylinux2014_x86_64:x86_64-linux-gnu.2.17 \
  manylinux_2_17_aarch64.manylinux2014_aarch64:aarch64-linux-gnu.2.17 \
  musllinux_1_2_x86_64:x86_64-linux-musl \
  musllinux_1_2_aarch64:aarch64-linux-musl \
  macosx_11_0_x86_64:x86_64-macos.11.0 \
  macosx_11_0_arm64:aarch64-macos.11.0 \
  win_amd64:x86_64-windows-gnu

TIERS = unit servers processes random foreign docs
PAGES = $(wildcard *.md docs/*.md docs/*/*.md)
SOURCES = $(shell find zarrasync examples benchmarks -name '*.py')
# Rules of Harper that run in addition to those in docs/_vocabulary. AnA does not know how the names in sources are spoken.
SOURCE_RULES = LongSentences,RepeatedWords,ThereIsAgreement
PAGE_RULES = AnA,$(SOURCE_RULES)
harper = RUST_BACKTRACE=0 $(BIN)/harper lint --format compact --user-dict-path .prose_cache/dictionary.txt \
  --weirpacks .prose_cache/vocabulary.weirpack --only "$$(cd docs/_vocabulary && echo *.weir | sed 's/\.weir//g; s/ /,/g'),$(1)" $(2)

.PHONY: help kernel demo test test-all $(TIERS:%=test-%) sanitize memcheck fuzz-kernel interop simulate mutants planted check cover fmt lint prose type generated calls instructions sync docs screenshots bench bench-full bench-pipelines bench-remote measurements wheels dist release-check clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 16

kernel:  ## Compile the kernel in this checkout if its sources have changed
	CFLAGS="-Werror -Wconversion $(CFLAGS)" $(PYTHON) zarrasync/_kernel/build.py

demo: $(VENV)/demo.stamp kernel  ## Ingest a global land mask into S3, read it back, and draw a map
	$(BIN)/python examples/quickstart.py

pytest = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test: $(VENV)/test.stamp kernel  ## Run the unit tests, and a few of each other tier; PYTEST_ADDOPTS is passed on
	$(pytest)

test-all: $(VENV)/test.stamp kernel  ## Run all tests, also those that take minutes, and list what cannot run here
	$(pytest) --tier=all --slow=1

test-unit:  ## Run the unit tests alone
test-servers:  ## Run the tests with servers and browsers
test-processes:  ## Run the tests that start and kill processes
test-random:  ## Run the tests with random cases
test-foreign:  ## Run the tests with packages and stores of other projects
test-docs:  ## Run the code of the documentation
$(TIERS:%=test-%): test-%: $(VENV)/test.stamp kernel
	$(pytest) --tier=$*

planted: artifacts/planted/coverage  ## Plant faults that a seed has drawn, and print which test of `make test` finds each
	$(BIN)/python -m tests.planted find

# Which lines each test of `make test` executes, so that only those run that execute the line of a fault.
artifacts/planted/coverage: $(SOURCES) | $(VENV)/test.stamp kernel
	$(BIN)/python -m tests.planted record

interop: kernel $(VENV)/test.stamp .venv-interop/stamp  ## Exchange stores with other packages, and write docs/interop.md
	ZARRASYNC_INTEROP=$(CURDIR)/.venv-interop/bin/python $(BIN)/python -W ignore -m tests.interop.page

# Packages whose requirements conflict with those of the tests, and which need Python 3.12: make interop PYTHON=python3.13
.venv-interop/stamp: tests/interop/packages/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv .venv-interop
	@$(call install,-r $<,.venv-interop)
	@touch $@

# zarr-python 2.18 reads and writes the older dialect of the draft, and needs old dependencies.
.venv-zarr2/stamp: | $(VENV)/bin/python
	$(PYTHON) -m venv .venv-zarr2
	@$(call install,'zarr==2.18.7' 'numcodecs==0.15.2' 'numpy==2.2.6' pytest,.venv-zarr2)
	@touch $@

# ecCodes, whose wheels end Python with a crash beside those of rasterio.
.venv-grib/stamp: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv .venv-grib
	@$(call install,-e '.[xarray]' cfgrib eccodes pytest,.venv-grib)
	@touch $@

simulate: kernel $(VENV)/test.stamp  ## Run simulations of faults and crashes: SEEDS=100000
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --processes $$(nproc)

mutants: kernel $(VENV)/test.stamp  ## Check that the simulations find each planted bug
	$(BIN)/python -m tests.simulation.mutants

sanitize: $(VENV)/test.stamp  ## Run the tests of the kernel with sanitizers of addresses and undefined behaviour
	rm -f zarrasync/_kernel/libkernel.*
	ZARRASYNC_NATIVE=require CFLAGS="-O1 -g -DKERNEL_SMALL_LIMITS -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
	  $(PYTHON) zarrasync/_kernel/build.py
	LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  ZARRASYNC_NATIVE=require $(BIN)/python -m pytest -n 0 --capture=sys $(NATIVE_TESTS) $(WITHOUT_LIMITS); \
	status=$$?; rm -f zarrasync/_kernel/libkernel.*; exit $$status

memcheck: kernel $(VENV)/test.stamp  ## Run a few tests of the kernel under valgrind; errors with the kernel in their stack count
	@mkdir -p artifacts
	ZARRASYNC_NATIVE=require PYTHONMALLOC=malloc valgrind --quiet --xml=yes --xml-file=artifacts/memcheck.xml \
	  $(BIN)/python -m pytest -n 0 $(MEMCHECK_TESTS)
	! grep --before-context=30 --after-context=60 'libkernel[.]so</obj>' artifacts/memcheck.xml

fuzz-kernel:  ## Read damaged chunks with the kernel under libFuzzer and sanitizers: FUZZ_SECONDS=3600
	@mkdir -p artifacts
	clang -std=c11 -O1 -g -Wall -Wextra -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	  -DKERNEL_SMALL_LIMITS -I zarrasync/_kernel -o artifacts/fuzz-kernel tests/kernel/fuzz.c zarrasync/_kernel/*.c \
	  -lblosc -lisal -llz4 -lz -lzstd
	for codec in $(FUZZ_CODECS); do \
	  mkdir -p artifacts/fuzz-corpus/$$codec; echo "chains that begin with codec $$codec"; \
	  FUZZ_CODEC=$$codec ASAN_OPTIONS=quarantine_size_mb=32 artifacts/fuzz-kernel -max_len=300 -len_control=0 \
	  -max_total_time=$$(( $(FUZZ_SECONDS) / $(words $(FUZZ_CODECS)) )) -artifact_prefix=artifacts/ artifacts/fuzz-corpus/$$codec \
	  || exit 1; done

check: lint prose type generated calls test docs  ## Run the checks, the tests, and the build of the documentation

cover: $(VENV)/test.stamp  ## Report the coverage by package after `make test PYTEST_ADDOPTS=--cov`
	@for package in zarrasync/*/; do \
	  printf '%-28s %s%%\n' $$package "$$($(BIN)/coverage report --format=total --include="$$package**")"; done
	@printf '%-28s ' 'total, at least $(COVERAGE_FLOOR)'; $(BIN)/coverage report --format=total --fail-under=$(COVERAGE_FLOOR)

fmt: $(VENV)/dev.stamp  ## Format the code and apply the linter's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/dev.stamp  ## Check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

prose: $(VENV)/dev.stamp  ## Check spelling everywhere, and the phrasing of documentation, docstrings and comments
	$(BIN)/codespell
	@mkdir -p .prose_cache && touch .prose_cache/dictionary.txt && rm -f .prose_cache/vocabulary.weirpack
	@for rule in docs/_vocabulary/*.weir; do \
	  result=$$($(BIN)/harper test $$rule 2>&1) || { echo "$$rule: $$result"; exit 1; }; done
	cd docs/_vocabulary && $(abspath $(BIN))/python -m zipfile -c $(CURDIR)/.prose_cache/vocabulary.weirpack *
	@$(call harper,$(PAGE_RULES),$(PAGES))
	@$(call harper,$(SOURCE_RULES),$(SOURCES))

type: $(VENV)/dev.stamp  ## Check types with mypy and pyright
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

generated: $(VENV)/dev.stamp  ## Check that zarrasync/sync.py is up to date
	$(BIN)/python -m zarrasync._util.generate_sync --check

calls: kernel $(VENV)/dev.stamp  ## Count the Python calls of small reads and writes; fails above the limits
	$(BIN)/python benchmarks/calls.py --check

instructions: kernel $(VENV)/test.stamp  ## Count the instructions of small reads and writes with valgrind; fails above the limits
	$(BIN)/python benchmarks/instructions.py --check

sync: $(VENV)/dev.stamp  ## Generate zarrasync/sync.py
	$(BIN)/python -m zarrasync._util.generate_sync

docs: $(VENV)/docs.stamp  ## Build the documentation; warnings are errors
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

screenshots: $(VENV)/test.stamp  ## Make the documentation's screenshots again, with Chromium
	PYTHONPATH=. $(BIN)/python docs/screenshots.py

# With BENCH=--write-docs, the results replace those in the documentation.
bench: kernel $(VENV)/bench.stamp  ## Compare with zarr-python, zarrs, zarrista and tensorstore
	$(BIN)/python benchmarks/run.py $(BENCH)

bench-full: kernel $(VENV)/bench.stamp  ## Compare every codec, chunk size and task
	$(BIN)/python benchmarks/run.py --full $(BENCH)

bench-pipelines: kernel $(VENV)/bench.stamp  ## Compare the codec pipelines of zarr-python
	$(BIN)/python benchmarks/pipelines.py $(BENCH)

bench-remote: kernel $(VENV)/bench.stamp  ## Measure remote reads, requests, writers, ingestion and the server
	$(BIN)/python benchmarks/remote.py $(BENCH)
	$(BIN)/python benchmarks/s3_requests.py $(BENCH)
	$(BIN)/python benchmarks/s3_requests.py --times $(BENCH)
	$(BIN)/python benchmarks/updates.py $(BENCH)
	$(BIN)/python benchmarks/ingest.py $(BENCH)
	@if command -v radosgw; then $(BIN)/python benchmarks/ingest.py --s3 radosgw $(BENCH); \
	  else echo "radosgw is not installed: ingestion into S3 was not measured"; fi
	$(BIN)/python benchmarks/serving.py $(BENCH)

measurements:  ## Measure everything again, and write the numbers into the README and the documentation
	$(MAKE) -j1 bench bench-full bench-pipelines bench-remote BENCH=--write-docs
	$(BIN)/python benchmarks/pages.py

wheels: $(VENV)/release.stamp  ## Cross-compile the wheels of all platforms, and build one without the kernel
	rm -rf dist
	for target in $(WHEELS); do \
	  ZARRASYNC_NATIVE=require ZARRASYNC_PLATFORM="$${target%:*}" CFLAGS=-s \
	  CC="$(abspath $(BIN))/python -m ziglang cc -target $${target#*:}" \
	  $(BIN)/python -m hatchling build -t wheel -d dist || exit 1; done
	ZARRASYNC_NATIVE=off $(BIN)/python -m hatchling build -t wheel -d dist
	for wheel in dist/*manylinux*; do \
	  $(BIN)/auditwheel show "$$wheel" | tr '\n' ' ' | grep -qE '"manylinux_2_([5-9]|1[0-7])_' || \
	  { $(BIN)/auditwheel show "$$wheel"; exit 1; }; done

dist: wheels  ## Build the sdist and the wheels, check all, and try the sdist and a wheel in a new environment
	rm -rf .venv-dist
	$(BIN)/python -m build --sdist --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv .venv-dist
	for source in "--find-links dist zarrasync==$(VERSION)" "--force-reinstall --no-deps dist/zarrasync-$(VERSION).tar.gz"; do \
	  .venv-dist/bin/python -m pip install --quiet --disable-pip-version-check $$source && \
	  .venv-dist/bin/python -I -c 'import zarrasync.sync as za; a = za.create_array({}, data=range(6), chunks=4); assert a[1:].sum() == 15' && \
	  .venv-dist/bin/zarrasync --version | grep -F '$(VERSION) (compiled kernel: active)' || exit 1; done

release-check: check dist  ## Check everything for a release; docs/development.md lists the steps
	test -z "$$(git status --porcelain)"
	! git rev-parse -q --verify 'refs/tags/v$(VERSION)'
	grep -q '^## $(VERSION) ([0-9-]*)$$' CHANGELOG.md

$(VENV)/bin/python:
	@echo "Creating an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv || \
	  echo "uv cannot be installed; pip takes longer"

# What the extras install, for people who wait.
contents-demo = moto and matplotlib, about a minute
contents-test = the packages of the tests, one to three minutes
contents-docs = Sphinx, about a minute
contents-dev = the linters and all packages of the tests, one to three minutes
contents-bench = the libraries to compare with, about a minute

$(VENV)/%.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing zarrasync with $(or $(contents-$*),the packages of the extra '$*')"
	@$(call install,-e '.[$*]')
	@touch $@

clean:  ## Remove environments, caches and build results
	rm -rf .venv .venv-* .zig .azurite .zarrita .*_cache .hypothesis .coverage dist demo-out benchmarks/out docs/_build artifacts
