# make demo   set everything up, log models that ship with the package, and train a small one under an Xray
# make test   set everything up and run lint, types, the import contract and the tests
# make zoo    set everything up, prove the logs of some hundred models and diagnose them (50 minutes), writing build/zoo.json
# make operators set everything up, log and prove every operator of torch's own database (3 minutes), writing build/operators.json
# make sweeps set everything up and try everything of which the tests try one of each kind (ten minutes)
# make interrupts set everything up and interrupt the calls of the library at every line, by a signal (two hours)
# make tolerances set everything up and compare models of the zoo with themselves, rounded otherwise or with faults planted (10 minutes)
# make gallery set everything up and draw docs/gallery
# make web    set everything up and build the browser programs, if their sources changed
# make web-types write what the browser programs and the docs take from src/torcheer/page/schema.py and src/torcheer/_text/colors.py
# make contact-sheet set everything up and take every screenshot worth looking at, writing build/contact_sheet/index.html
# make bench-viewer set everything up and measure the viewer in a browser
# make mutants set everything up, put 150 small faults into the code one by one, and see which ones no test notices (an hour)
# make changes set everything up, change one value of a thousand random programs and compare replays and live changes (ten minutes)
# make fuzz   set everything up and open ten thousand broken files of saved histories and some hundred folders (an hour)
# make big-log set everything up, log 20 GB into a file in build/ and read it again, with 2 GB of memory (SIZE=5 for 5 GB)
# make big-extract set everything up, extract 10 GB of features into build/ and read them again, with 2 GB of memory (SIZE=5 for 5 GB)
# make test-ray set everything up and run the tests of Extractor in a real Ray on this machine (five minutes)
# make kills  set everything up, kill extractions of datasets two hundred times and compare every byte (two minutes)
# make test-torch TORCH=2.15.0 run the tests with another torch, in an environment of its own below build/ (6 GB; WITH='numpy==1.26.4' for others)
# make test-wheel build the wheel and try it in an empty environment with the newest torch (TORCH=2.6.0 for another; 6 GB)
# make measures count what docs/measures.md shows
# make bench  set everything up, measure time and memory, and write build/benchmarks.json
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
BENCH_STAMP := $(VENV)/.bench-installed
MUTANTS_STAMP := $(VENV)/.mutants-installed
MODELS := build/models
MODELS_STAMP := $(MODELS)/.torchvision-installed
ZOO_STAMP := $(MODELS)/.zoo-installed
RAY := build/ray
RAY_STAMP := $(RAY)/.ray-installed
# Ray, and the small packages that it imports; without what it depends on, so that torch and NumPy are not replaced.
RAY_PACKAGES := ray pyarrow msgpack certifi charset_normalizer requests urllib3
# Libraries of models, and the small packages that they import; without what they depend on, so that torch is not replaced.
ZOO_PACKAGES := timm diffusers torch_geometric segmentation_models_pytorch x-transformers aiohttp certifi charset_normalizer einops \
	einx frozendict importlib_metadata loguru requests torch-einops-utils urllib3 xxhash zipp

WEB := src/torcheer/page/static/graph.js
WEB_SOURCES := $(wildcard web/*.json web/*.mjs) $(shell find web/graph web/report web/shared -type f)

.PHONY: setup web models browser demo test lint types imports web-types web-test zoo tolerances operators sweeps interrupts mutants changes fuzz big-log big-extract \
	test-ray kills gallery test-torch test-wheel \
	contact-sheet bench bench-viewer measures clean

setup: $(STAMP) web

web: $(WEB)

# Where there is no Node.js, a package in $(VENV) brings it.
$(WEB): $(WEB_SOURCES) hatch_build.py | $(STAMP)
	$(BIN)/python hatch_build.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# Earlier versions of this file left packages here that cannot be imported.
	$(BIN)/python -c 'import torchvision' 2> /dev/null || $(BIN)/python -m pip uninstall --quiet --yes torchvision timm 2> /dev/null
	touch $(STAMP)

# The compiled part of torchvision does not fit the CPU build of torch, so `import torchvision` would fail in $(VENV), and with it
# whatever imports it when it is there. The tests need only its models, which are pure Python: they lie in a folder of their own,
# which tests/torchvision_operators.py puts on the path.
models: $(MODELS_STAMP)

$(MODELS_STAMP): constraints.txt | $(STAMP)
	rm -rf $(MODELS)
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(MODELS) torchvision
	touch $(MODELS_STAMP)

demo: setup
	$(BIN)/torcheer demo
	$(BIN)/python examples/train_xray.py --steps 60 --folder torcheer_demo/xray

# The pages are tested in a browser: one that is there, or Debian's. Without one those tests are skipped by name; with CI=true they fail.
# Three tests also run in Firefox, if it is there or can be installed.
browser: setup
	@command -v firefox-esr > /dev/null || command -v firefox > /dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get install --yes --quiet=2 --no-install-recommends firefox-esr > /dev/null 2>&1 || true; \
	fi
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get install --yes --quiet=2 --no-install-recommends chromium > /dev/null 2>&1 \
		|| { apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends chromium > /dev/null; } || true; \
	else \
		echo "There is no Chrome or Chromium, so the pages are not tested in a browser. Install one, and 'make test' finds it."; \
	fi

test: setup models browser lint types imports web-test
	$(BIN)/python -m pytest

# Another torch from the registry, with the CUDA packages that it is linked to. What WITH names replaces the versions of constraints.txt.
TORCH ?= 2.15.0
WITH ?=
TORCH_VENV := build/torch-$(TORCH)
OTHERS := torch==$(TORCH) $(WITH)

test-torch: web models browser
	test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	grep -v $(foreach one,$(OTHERS),-e '^$(firstword $(subst =, ,$(one)))==') constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet --constraint $(TORCH_VENV)/constraints.txt --editable '.[dev]' $(OTHERS)
	$(TORCH_VENV)/bin/python -m pytest

# The wheel, in an empty environment: with the newest torch, which plain pip takes, or with another one (TORCH=2.6.0).
test-wheel: TORCH =
test-wheel: web
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/environment
	build/wheel/environment/bin/python -m pip install --quiet build/wheel/torcheer-*.whl $(if $(TORCH),torch==$(TORCH))
	cd build/wheel && environment/bin/python ../../tests/walk_through.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Types, colours and tables that are declared in Python.
web-types: $(STAMP)
	$(BIN)/python web/generate.py

web-test: setup
	$(BIN)/python hatch_build.py test

# What the zoo takes its models from lies beside torchvision, which some of it imports. Without a package the zoo says so and goes on.
$(ZOO_STAMP): $(MODELS_STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(MODELS) $(ZOO_PACKAGES) \
		&& touch $(ZOO_STAMP)

zoo: setup models
	-$(MAKE) $(ZOO_STAMP)
	PYTHONPATH=tests $(BIN)/python -m zoo

tolerances: setup models
	PYTHONPATH=.:tests $(BIN)/python -m tests.compare.tolerance_study

$(MUTANTS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt coverage && touch $(MUTANTS_STAMP)

mutants: setup models browser $(MUTANTS_STAMP)
	PYTHONPATH=tests $(BIN)/python -m mutants

changes: PROGRAMS ?= 1000
changes: setup
	PROGRAMS=$(PROGRAMS) $(BIN)/python -m pytest -n 0 -q --hypothesis-show-statistics tests/replay/test_changed_programs.py

fuzz: setup
	PYTHONPATH=tests $(BIN)/python tests/store/fuzz_files.py 10000
	PYTHONPATH=tests $(BIN)/python tests/hostile_folders.py features 300
	PYTHONPATH=tests $(BIN)/python tests/hostile_folders.py xray 300

big-log: SIZE ?= 20
big-log: setup
	mkdir -p build
	PYTHONPATH=tests $(BIN)/python tests/store/big_log.py $(SIZE) build/big-log.safetensors

big-extract: SIZE ?= 10
big-extract: setup
	mkdir -p build
	PYTHONPATH=tests $(BIN)/python tests/features/big_extract.py $(SIZE) build/big-extract

# Ray lies in a folder of its own, so that 'make test' is not another one where it was installed.
$(RAY_STAMP): constraints.txt | $(STAMP)
	rm -rf $(RAY)
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(RAY) $(RAY_PACKAGES)
	touch $(RAY_STAMP)

# Its processes are still there when it is shut down, of which Python warns.
test-ray: setup $(RAY_STAMP)
	TEST_RAY=1 PYTHONPATH=$(RAY) $(BIN)/python -W ignore -m pytest -n 0 -W ignore tests/features/test_ray.py

kills: setup
	$(BIN)/python tests/features/kills.py 100

interrupts: setup
	$(BIN)/python tests/interrupts.py

sweeps: setup models
	SWEEPS=1 $(BIN)/python -m pytest tests/test_private_names.py

operators: setup
	PYTHONPATH=tests $(BIN)/python -W ignore -m operators

gallery: setup models browser
	$(BIN)/python docs/gallery/make.py
	$(BIN)/python docs/gallery/screenshots.py

# Without the packages of the zoo the models that need them are left out.
contact-sheet: setup models browser
	-$(MAKE) $(ZOO_STAMP)
	PYTHONPATH=tests $(BIN)/python -W ignore -m contact_sheet

# TorchLens, which the benchmarks compare with, is not part of 'setup'. Without it they say so and go on.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]' && touch $(BENCH_STAMP)

bench: setup models
	-$(MAKE) $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

bench-viewer: setup browser
	$(BIN)/python -m benchmarks.viewer

measures: setup
	$(BIN)/python -m benchmarks.measures

clean:
	rm -rf $(VENV) build dist torcheer_demo web/node_modules src/torcheer/page/static .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
