# `make serve` and `make test` are all a new machine needs; both build .venv when it is missing.
PYTHON ?= python3
CONFIG ?= serve_configs/app.yaml
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED ?= 0
# Ray starts workers at nice 15; on one machine they would wait for every client that runs beside them.
export RAY_worker_niceness ?= 0

.PHONY: serve test lint format clean

serve: .venv/serve.done
	$(BIN)/python -m deployments.engine.sources $(CONFIG)
	$(BIN)/serve run $(CONFIG)

test: lint
	$(BIN)/pytest

lint: .venv/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/test.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/serve.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e .
	touch $@

.venv/test.done: .venv/serve.done
	$(BIN)/pip install -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
