# make demo and make test are the whole set-up on a fresh machine. They make an environment in .venv and use it.
PYTHON ?= python3
# What pip is given to install torch, for example TORCH='torch==2.13.0 --index-url ...' for another build.
TORCH ?= torch==2.13.0
BIN = .venv/bin
PIP = $(BIN)/pip install --quiet --constraint constraints.txt
# The installation keeps its own log; show it only if something goes wrong.
QUIETLY = > .venv/install.log 2>&1 || { cat .venv/install.log; exit 1; }

.PHONY: help install demo test lint docs release-check bench clean

help:
	@echo "make install   the package in .venv, with its web page and the export to ONNX"
	@echo "make demo      train and compare four few-shot methods on glyphs (demo/comparison.png)"
	@echo "make test      all tests"
	@echo "make lint      style and types"
	@echo "make docs      the documentation as a web site (docs/_build/index.html); checks its links"
	@echo "make release-check   builds the package, installs it into an empty environment, and runs every command there"
	@echo "make bench     speed and memory of the layer, of evaluations, of training and of own pictures (benchmarks/results/)"

install: .venv/installed

demo: .venv/installed
	@echo "Demo: four methods learn on one set of letters to recognise others from one or five examples"
	@$(BIN)/deepbdc compare glyphs/protonet glyphs/good_embed glyphs/meta_deepbdc glyphs/stl_deepbdc \
		--runs demo --output demo/comparison.png

test: .venv/installed-dev
	@echo "Running the tests"
	@$(BIN)/python -m pytest -n auto --dist loadgroup

lint: .venv/installed-dev
	@echo "Checking style and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: .venv/installed-dev
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build
	@$(BIN)/python docs/check_links.py docs/_build *.md */README.md docs/*.md docs/paper/*/README.md
	@echo "The first page: docs/_build/index.html"

release-check: .venv/installed-dev
	@$(BIN)/python docs/release_check.py

bench: .venv/installed
	@$(BIN)/python benchmarks/bdc_layer.py
	@$(BIN)/python benchmarks/evaluation.py
	@$(BIN)/python benchmarks/training.py
	@$(BIN)/python benchmarks/own_images_speed.py

clean:
	rm -rf .venv demo docs/_build

# torch comes first and by itself, so that nothing else chooses its build. A file is touched when a step is complete,
# so that an interrupted one is done again.
.venv/torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deepbdc needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	@echo "Making an environment in .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv
	@echo "Installing $(TORCH) (a minute or so)"
	@$(BIN)/pip install --quiet $(TORCH) $(QUIETLY)
	@touch $@

.venv/installed: .venv/torch pyproject.toml constraints.txt
	@echo "Installing deepbdc (a minute or so)"
	@$(PIP) --editable '.[app,onnx]' $(QUIETLY)
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing what tests and checks need (a minute or so)"
	@$(PIP) --editable '.[dev]' $(QUIETLY)
	@touch $@
