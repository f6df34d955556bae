PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test test-postgres calibrate lint format dashboard clean

run: $(STAMP)
	@$(BIN)/counterproof models fetch smollm2-135m
	@$(BIN)/counterproof doctor --roofline
	@$(BIN)/counterproof run kv_cache --packet

test: lint
	$(BIN)/python -m pytest

# A temporary PostgreSQL and an MLflow server on it; PostgreSQL's programs come from Debian's packages.
test-postgres: $(STAMP)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null)
	COUNTERPROOF_NEEDS_POSTGRES=1 $(BIN)/python -m pytest tests/platform/run/test_postgres_tracking.py

# Thirty-six studies whose truth is known, on two quiet cores; CALIBRATE="--each 2" for fewer.
calibrate: $(STAMP)
	$(BIN)/python -m benchmarks.calibrate $(CALIBRATE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboard: $(STAMP)
	$(BIN)/counterproof dashboard

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
