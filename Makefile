# make demo   set everything up and log a model that ships with the package
# make test   set everything up and run lint, types, the import contract and the tests
# make zoo    set everything up and prove the logs of some hundred models (half an hour), writing build/zoo.json
# make gallery set everything up and draw docs/gallery
# make bench  set everything up, measure time and memory, and write build/benchmarks.json
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
ZOO_STAMP := $(VENV)/.zoo-installed

.PHONY: setup demo test lint types imports zoo gallery bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt torchvision
	touch $(STAMP)

demo: setup
	$(BIN)/torcheer demo

test: setup lint types imports
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# timm, a part of the zoo, is not part of 'setup'. Without it the zoo says so and goes on.
$(ZOO_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt huggingface_hub safetensors pyyaml \
		&& $(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt timm && touch $(ZOO_STAMP)

zoo: setup
	-$(MAKE) $(ZOO_STAMP)
	PYTHONPATH=tests $(BIN)/python -m zoo

gallery: setup
	$(BIN)/python docs/gallery/make.py

# TorchLens, which the benchmarks compare with, is not part of 'setup'. Without it they say so and go on.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]' && touch $(BENCH_STAMP)

bench: setup
	-$(MAKE) $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist torcheer_demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
