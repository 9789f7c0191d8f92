# Needs make and Python 3.11 or newer; everything else goes into .venv. Another Python: make PYTHON=python3.12 test
PYTHON ?= python3
BIN := .venv/bin
TESTED := dev mujoco gym sumo sumo-build privacy he sweep tensorboard flower flower-simulation
# Tests of one file share what they made; in the order of their names long files come early.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
# The pins hold every package, so pip need not search for any.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
COMPILE := uv pip compile --quiet --universal --fork-strategy fewest --no-header --no-annotate --no-emit-index-url \
	--generate-hashes

.PHONY: run test lint check mutants audit bench docs sbom pins clean

run: .venv/installed  ## a small comparison: table, plot, report, and all cars under one policy, in runs/demo
	$(BIN)/fedpohcs compare mountain-cars --selectors fedavg,power-of-choice,fedpohcs,gradient-sampling \
		--seeds 0 --rounds 40 --out runs/demo --overwrite
	$(BIN)/fedpohcs play runs/demo/medium/gradient-sampling/seed-0@0 \
		--beside runs/demo/medium/gradient-sampling/seed-0@last -o runs/demo/cars.gif
	@echo 'Open runs/demo/cars.gif: one policy for sixty different cars, before training and after 40 rounds.'
	@echo 'The report in a browser, also while runs train: $(BIN)/fedpohcs watch runs/demo'

test: .venv/installed-dev  ## the default test suite
	$(BIN)/python -m pytest $(WORKERS)

lint: .venv/installed-dev  ## format, rules of style, types, and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint docs audit test  ## all that must hold before a change lands; ends with the summary of the tests

mutants: .venv/installed-dev  ## whether the tests notice plausible mistakes; takes minutes
	$(BIN)/python tests/mutants.py

# pip-audit takes a service that knows no package for one that knows no weakness, so it is first asked for one it must know.
audit: .venv/installed-dev  ## known weaknesses of the pinned packages
	@echo 'jinja2==2.4.1' > .venv/known-weak.txt
	@if $(BIN)/pip-audit --disable-pip --no-deps -r .venv/known-weak.txt -f json --progress-spinner off 2>/dev/null | grep -q '"id"'; \
		then $(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt --progress-spinner off; \
		else echo "audit: skipped, because no service that knows advisories can be reached from here"; fi

bench: .venv/installed-dev  ## every speed script
	set -e; for script in benchmarks/[a-z]*.py; do echo "$$script"; $(BIN)/python "$$script"; done

docs: .venv/installed-docs  ## the documentation, into site/
	$(BIN)/mkdocs build --strict

sbom: .venv/installed-sbom  ## the pinned packages as CycloneDX files, into sbom/: the core, and with every tested extra
	mkdir -p sbom
	set -e; for pins in requirements requirements-dev; do PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements $$pins.txt \
		--pyproject pyproject.toml --mc-type library --output-reproducible --of JSON -o sbom/$$pins.cdx.json; \
		echo sbom/$$pins.cdx.json; done

pins:  ## renew the pinned requirements, with hashes that pip checks; needs uv
	(echo '# What the tests need, pinned: the extras are tested with the real thing. To renew: make pins'; \
		$(COMPILE) pyproject.toml $(addprefix --extra ,$(TESTED))) > requirements.new \
		&& mv requirements.new requirements-dev.txt
	(echo '# The core, pinned. To renew: make pins'; \
		$(COMPILE) pyproject.toml --constraints requirements-dev.txt) > requirements.new \
		&& mv requirements.new requirements.txt
	(echo '# The docs extra, pinned beside requirements.txt. To renew: make pins'; \
		printf '%s\n' 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.26,<2' | $(COMPILE) - --constraints requirements-dev.txt) > requirements.new \
		&& mv requirements.new requirements-docs.txt
	(echo '# The sbom extra, pinned beside requirements.txt. To renew: make pins'; \
		echo 'cyclonedx-bom>=7,<8' | $(COMPILE) - --constraints requirements-dev.txt) > requirements.new \
		&& mv requirements.new requirements-sbom.txt

clean:  ## remove what the other targets made, except runs/
	rm -rf .venv build dist site sbom .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "fedpohcs needs Python 3.11 or newer. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments. Install its venv package (Debian: apt install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(INSTALL) -r requirements.txt
	$(INSTALL) -e .
	@touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(INSTALL) -r requirements-dev.txt
	@touch $@

.venv/installed-docs: requirements-docs.txt .venv/installed
	$(INSTALL) -r requirements-docs.txt
	@touch $@

.venv/installed-sbom: requirements-sbom.txt .venv/installed
	$(INSTALL) -r requirements-sbom.txt
	@touch $@
