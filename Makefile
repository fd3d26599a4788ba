# `make demo`: install, and run the main job on a simulated cluster. `make test`: install, and run all tests.
# Both need Python 3.11 or later, and nothing else (they bring Node.js for the lab extension); the Docker and browser tests
# skip where there is no engine or browser.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Most of the time tests wait for a kernel, an engine or a page: more of them at a time than there are cores.
WORKERS ?= 5

# What an installation has copies of. The package itself is used from here, so that after a `git pull` it is the new one.
INSTALLED := pyproject.toml $(wildcard kernelspec/* jupyter_config/* labextension/*.* labextension/.yarnrc.yml) \
             $(shell find labextension/src labextension/style labextension/schema -type f -not -path '*/__tests__/*')
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: demo lab test lint lint-python lint-labextension bench placement notebooks pictures clean

demo: $(VENV)/.demo
	$(BIN)/jupyter-gpufit demo --check
	@echo
	@echo "Now with your own hands, in JupyterLab:  make lab"

lab: $(VENV)/.demo
	$(BIN)/jupyter-gpufit demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: lint-python lint-labextension

lint-python: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-labextension: $(VENV)/.test
	$(BIN)/python labextension/build.py lint

# Ten minutes: how fast everything is (bench/RESULTS.md). The Docker and Slurm parts need those.
bench: $(VENV)/.test
	$(BIN)/python bench/run.py

# An hour, and the trace's data: how full a cluster gets, by policy.
placement: $(VENV)/.test
	$(BIN)/python bench/run.py placement departures

# After a change of an example notebook: run it, and store what it gives.
notebooks: $(VENV)/.demo
	$(BIN)/python notebooks/execute.py

# After a change of what people see: the pictures of docs/, made by the tests that walk through it.
pictures: $(VENV)/.test
	GPUFIT_PICTURES=$(CURDIR)/docs/pictures $(BIN)/python -m pytest tests/ui/test_walk.py

clean:
	rm -rf $(VENV) build dist jupyter_gpufit/labextension
	rm -rf $(addprefix labextension/,.yarn lib node_modules)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(INSTALLED)
	@echo "Installing into $(VENV) (a minute or two) ..."
	$(INSTALL) '.[demo]'
	@touch $@

# (Whoever can run the tests can run the demo.)
$(VENV)/.test: $(VENV)/bin/python $(INSTALLED)
	@echo "Installing into $(VENV), with what the tests need (a minute or two) ..."
	$(INSTALL) '.[test]'
	@touch $@ $(VENV)/.demo
