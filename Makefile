# Everything runs in .venv, which these targets make.
# Tests run in a process for each core, four at most: compiling kernels, which takes most time, is one thread. GALLIVM_PERF=nopt has
# Mesa's software Vulkan compile without optimising, as each kernel runs for moments only.
# Files begin in the order that tests/conftest.py gives them: long ones first. Python writes bytecode even where the environment
# forbids it: without, each process and each command that a test starts compiles all modules again.
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: chat test test-all test-clients test-page test-ray soak soak-server lint format bench fuzz mutants mutation store-mutants docs clean offline-tools offline-shaders offline-tint offline-dxc offline-fxc offline-metal offline-amd offline-intel offline-subgroups validate

chat: .venv/.run
	@test -z "$(EXTRAS)" || $(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@$(BIN)/rwkv-gpu chat $(ARGS) || test $$? = 130  # left by Ctrl-C

PYTEST = GALLIVM_PERF=nopt PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=10

# All that needs no GPU, and each kernel once as users run it. The marker: tests/conftest.py.
test: .venv/.dev
	.ci/need-vulkan $(BIN)
	.ci/need-tmux
	$(PYTEST) -m quick $(ARGS)

test-all: .venv/.dev
	.ci/need-vulkan $(BIN)
	.ci/need-tmux
	$(PYTEST) $(ARGS)

# The page of the server and exported models, in Chromium.
test-page: .venv/.dev
	.ci/need-chromium
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,browser]'
	TEST_PAGE=1 $(BIN)/pytest tests/browser tests/export $(ARGS)

# Programs of others against our server, in an environment of their own: some want older packages than ours. uv chooses their
# versions within a minute; pip searches for an hour.
CLIENTS := build/clients
UV = $(BIN)/uv pip install --quiet --python
test-clients: .venv/.dev
	.ci/need-npm
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(CLIENTS)
	$(UV) $(CLIENTS) -e '.[dev,clients]'
	$(UV) $(CLIENTS) --target build/openai-1 'openai<2'
	$(BIN)/uv venv --quiet --allow-existing build/aiperf
	$(UV) build/aiperf aiperf
	npm install --prefix tests/clients --no-audit --no-fund --no-package-lock --silent
	$(CLIENTS)/bin/pytest --slow --timeout 3600 --durations=10 tests/clients tests/server $(ARGS)
	PYTHONPATH=build/openai-1 $(CLIENTS)/bin/pytest --timeout 3600 tests/clients/test_openai_python.py  # the major before

# The application on a Ray cluster of this machine: replicas are killed, replaced, and come and go.
test-ray: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,ray]'
	$(BIN)/pytest --slow --durations=10 tests/ray $(ARGS)

soak: .venv/.dev
	$(BIN)/python -m tests.soak $(ARGS)

soak-server: .venv/.dev
	$(BIN)/python -m tests.server.soak $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	.ci/need-vulkan $(BIN)
	$(BIN)/python -m benchmarks.dispatch $(ARGS)
	$(BIN)/python -m benchmarks.linear $(ARGS)

# Proofs on GPUs that are not at hand: all shaders of all families by the compilers of others (docs/devices.md).
OFFLINE := build/offline
offline-tools:
	sh benchmarks/offline/tools.sh $(OFFLINE)

offline-shaders: .venv/.dev
	$(BIN)/python -m benchmarks.offline.variants $(OFFLINE)/shaders $(ARGS)

offline-tint: .venv/.dev
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/python -m benchmarks.offline.prove tint $(OFFLINE)/shaders $(ARGS)

offline-dxc: .venv/.dev
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/python -m benchmarks.offline.prove dxc $(OFFLINE)/shaders $(ARGS) \
		--library $(OFFLINE)/libdxcompiler.so

offline-fxc: .venv/.dev
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/python -m benchmarks.offline.prove fxc $(OFFLINE)/shaders $(ARGS) \
		--library $(OFFLINE)/fxc/d3dcompiler_47.dll

# Tests on the CPU by Python for Windows, by Wine.
.PHONY: offline-windows
offline-windows:
	@sh benchmarks/offline/windows.sh $(OFFLINE) $(ARGS)

offline-metal: .venv/.dev
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/python -m benchmarks.offline.prove metal $(OFFLINE)/shaders $(ARGS)

# The doctor's trials on Metal's shaders, run by the CPU, with a detector of races.
.PHONY: offline-metal-run
offline-metal-run: .venv/.dev
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/pytest tests/measure/test_metal_cpu.py
	PATH="$(CURDIR)/$(OFFLINE)/bin:$$PATH" $(BIN)/python -m benchmarks.offline.metal_run $(OFFLINE)/metal $(ARGS)

offline-amd: .venv/.dev
	@$(BIN)/python -m benchmarks.offline.prove amd $(OFFLINE)/shaders --python $(OFFLINE)/bin/python-sid $(ARGS)

offline-intel: .venv/.dev
	@$(BIN)/python -m benchmarks.offline.prove intel $(OFFLINE)/shaders --python $(OFFLINE)/bin/python-sid $(ARGS)

# Kernels for compilers that choose the size of subgroups, run with subgroups of 8 lanes and of 16.
offline-subgroups: .venv/.dev
	LP_NATIVE_VECTOR_WIDTH=256 GALLIVM_PERF=nopt $(BIN)/python -m benchmarks.offline.everything subgroups llvmpipe $(ARGS)
	LP_NATIVE_VECTOR_WIDTH=512 GALLIVM_PERF=nopt $(BIN)/python -m benchmarks.offline.everything subgroups llvmpipe $(ARGS)

# Vulkan's validation layers over all kernels, all families of models, and the engine: no message that is not known.
validate: .venv/.dev
	@$(BIN)/python -m benchmarks.offline.validate $(OFFLINE)/validation --python $(OFFLINE)/bin/python-sid $(ARGS)

# Steps of every synthetic model, in every quantisation as an H200 would run them, and for other GPUs: their constants fit together.
.PHONY: plans
plans: .venv/.dev
	$(BIN)/python -m tests.measure.test_constants

fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz $(ARGS)

mutants: .venv/.dev
	$(BIN)/python -m tests.fuzz.run_mutants $(ARGS)

# The wheel and the source archive in dist/, checked, and the wheel used in an empty environment of each Python.
PYTHONS = $(shell for p in python3.11 python3.12 python3.13 python3.14; do $$p --version >/dev/null 2>&1 && echo $$p; done)
.PHONY: release
release: .venv/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	sh packaging/smoke.sh dist/*.whl $(PYTHONS)

# The JavaScript library as an npm package in dist/.
.PHONY: npm
npm: .venv/.dev
	.ci/need-npm
	$(BIN)/python packaging/npm/collect.py build/npm
	mkdir -p dist
	npm pack ./build/npm --pack-destination dist

# The terminal in README, by a real run of the built-in model.
.PHONY: recording
recording: .venv/.dev
	.ci/need-tmux
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python packaging/recording.py docs/recording.svg \
		'rwkv-gpu chat "What is the sea?"' 'rwkv-gpu chat "Who are you?"' 'rwkv-gpu chat "Tell me a story."'

# Repositories, files and sizes of the catalogue of models, where the hub can be reached.
.PHONY: check-catalogue
check-catalogue: .venv/.dev
	@$(BIN)/python -m tests.llm.check_catalogue $(ARGS)

# Small changes to the code, one at a time; lists those that no test notices. Takes an hour: --place and --count take a part.
mutation: .venv/.dev
	$(BIN)/python -m tests.mutation $(ARGS)

# A hundred thousand damaged values of a store of states.
store-mutants: .venv/.dev
	$(BIN)/python -m tests.stores.run_mutants $(ARGS)

# The page on the command line, and the API reference as HTML in build/api.
docs: .venv/.dev
	$(BIN)/python -m tests.cli.help_pages > docs/cli.md
	$(BIN)/pdoc rwkv_gpu rwkv_gpu.stores --no-search --template-directory docs/api --output-directory build/api

clean:
	rm -rf .venv build dist *.egg-info

.venv/.run: pyproject.toml
	@test -n "$(PYTHON)" || { echo "rwkv-gpu needs Python 3.11 or newer: apt install python3"; exit 1; }
	.ci/make-venv $(PYTHON)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.dev: .venv/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
