# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
INSTALL ?= $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check generated fmt lint type sync docs screenshots bench bench-full bench-remote clean

demo: .venv/demo.stamp  ## Ingest the world's land mask into S3 and read it back
	$(BIN)/python examples/quickstart.py

test: .venv/test.stamp  ## Run the tests, on up to four cores
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

check: lint type generated test docs  ## What CI runs

generated: .venv/dev.stamp  ## Check that the synchronous API is up to date
	$(BIN)/python -m zarrasync._util.generate_sync --check

fmt: .venv/dev.stamp  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/dev.stamp  ## Check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: .venv/dev.stamp  ## Check types
	$(BIN)/mypy

sync: .venv/dev.stamp  ## Generate the synchronous API
	$(BIN)/python -m zarrasync._util.generate_sync

docs: .venv/docs.stamp  ## Build the documentation; warnings are errors
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

screenshots: .venv/test.stamp  ## Make the pictures of the documentation anew, with Chromium
	$(BIN)/python docs/screenshots.py

bench: .venv/bench.stamp  ## Measure against zarr-python, zarrs, zarrista and tensorstore
	$(BIN)/python benchmarks/run.py

bench-full: .venv/bench.stamp  ## The same for every codec, chunk size and task
	$(BIN)/python benchmarks/run.py --full

bench-remote: .venv/bench.stamp  ## Measure reads from far away, requests, writers, ingestion and the server
	$(BIN)/python benchmarks/remote.py
	$(BIN)/python benchmarks/requests.py
	$(BIN)/python benchmarks/updates.py
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/serving.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/%.stamp: pyproject.toml | .venv/bin/python
	$(INSTALL) -e '.[$*]'
	@touch $@

clean:
	rm -rf .venv demo-out benchmarks/out docs/_build artifacts .azurite .zarrita .venv-zarr2 .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis
