# Each command makes the environment first. `make demo` shows what FedBraid does, `make test` checks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# what Python has compiled is kept, or every process that a test starts would compile torch, for seconds
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test install lint bench docs dist methods results clean

install: $(VENV)/installed

# torch goes first: other packages would ask for a newer build of it. Python compiles what is imported by itself.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'FedBraid needs Python 3.11 or newer; set PYTHON=...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	touch $@

demo: install
	$(BIN)/fedbraid compare fedavg fedavg+disco fedprox scaffold fedskip \
		--seeds 3 --target 0.85 --set partition.beta=0.1 --set rounds=40 --out demo --resume

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

# a module stays in one process: some begin with a cluster, or a federation, of their own
test: lint
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: install
	$(BIN)/fedbraid bench --quick

# the site, without a network: a broken link or an unknown option is an error
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

dist: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

methods: install
	$(BIN)/python -c "from fedbraid.contract import catalogue; print(catalogue.page(), end='')" > docs/methods.md

# the pages of all studies from their packed records: results/overview.md is the index
SHIFT := $(BIN)/fedbraid study report results/fedacd-shift/recipe.toml --out results/fedacd-shift --seeds 1 \
	--strand results/fedacd-shift/strands.py:Bound --strand results/fedacd-shift/strands.py:PerRound
results: install
	$(BIN)/fedbraid study report > /dev/null
	$(SHIFT) > /dev/null
	$(SHIFT) --set optimizer.decay=0.99 --set optimizer.clip=10 > /dev/null
	$(BIN)/fedbraid study overview > /dev/null

clean:
	rm -rf $(VENV) demo build dist
