# make demo             raw reviews -> members -> ensemble -> runs/demo/report.html
# make demo-sudoku      generated puzzles -> networks -> ensemble -> runs/sudoku_demo/report.html, which shows solutions step by step
# make demo-emulator    generated sea ice -> networks and trees -> ensemble -> runs/emulator_demo/report.html, with Jacobians
# make test             all tests
# make torture          longer tests, such as those of killed runs
# make check            lint, types, layout, and whether the READMEs agree with the measured figures
# make fix              format, and fix lint errors
# make bench            measure the figures that need no downloads, into slurm/results/*.json
# make pains            reproduce problems reported by users of plain Accelerate, with it and with this project: ten minutes
# make figures          insert the figures from these files into the READMEs
# make bench-gpu        the steps of all recipes on an NVIDIA GPU, and of the training loop compared with plain PyTorch
# make bench-autogluon  compare the ensemble with AutoGluon, in a separate venv (3 GB), on the same rows
# make bench-tables TABLES=folder   compare scripts/fit.py with AutoGluon and LightGBM on public tables; hours the first time

PYTHON ?= python3
VENV ?= .venv
DEMO ?= runs/demo
SUDOKU ?= runs/sudoku_demo
EMULATOR ?= runs/emulator_demo
SEEDS ?= 0 1
SIZE ?= full
TABLES ?= ../shared/data/tables
BIN := $(VENV)/bin
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest
AUTOGLUON := 1.6.3
AUTOGLUON_VENV := .venv-autogluon

# A short demo for CI: the same command with a fifth of the data
ifeq ($(SIZE),short)
MARKET := market.num_products=800 market.num_reviews=40000
endif

.PHONY: demo demo-sudoku demo-emulator test test-parallel test-serial test-slurm torture check fix figures bench bench-gpu bench-autogluon bench-tables pains clean

demo: $(VENV)/installed
	$(BIN)/python scripts/fit.py --recipe hot_sellers out=$(DEMO) raw=$(DEMO)/raw time_limit=0 overwrite=true $(MARKET)
	@echo "the other commands of the pages need the environment: source $(VENV)/bin/activate"

# One member for each of SEEDS, trained one after the other on one core; those of a previous demo are deleted
demo-sudoku: export OMP_NUM_THREADS := 1
demo-sudoku: $(VENV)/installed
	rm -rf "$(SUDOKU)"/members/trm_[0-9]* "$(SUDOKU)"/predictions/trm_[0-9]*
	$(BIN)/python scripts/prepare_data.py --recipe sudoku out=$(SUDOKU)/prepared side=6 clues=18 num_train=1000 \
		num_validation=500 num_test=300 overwrite=true
	for seed in $(SEEDS); do $(BIN)/accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py \
		--recipe sudoku --config ensemble/recipes/sudoku/presets/sudoku_demo.yaml seed=$$seed data=$(SUDOKU)/prepared \
		out=$(SUDOKU)/members/trm_$$seed || exit; \
		$(BIN)/python scripts/predict.py member=$(SUDOKU)/members/trm_$$seed data=$(SUDOKU)/prepared \
		out=$(SUDOKU)/predictions || exit; done
	$(BIN)/python scripts/ensemble_predictor.py fit predictions=$(SUDOKU)/predictions data=$(SUDOKU)/prepared \
		out=$(SUDOKU)/ensemble overwrite=true
	$(BIN)/python scripts/report.py ensemble=$(SUDOKU)/ensemble data=$(SUDOKU)/prepared \
		predictions=$(SUDOKU)/predictions out=$(SUDOKU)/report.html

demo-emulator: $(VENV)/installed
	$(BIN)/python scripts/fit.py --recipe emulator out=$(EMULATOR) num_times=4 time_limit=0 overwrite=true

# Runs all three stages, also if one fails; tests/helpers/stages.py assigns the tests to them
test: $(VENV)/installed-dev
	@code=0; for stage in parallel serial slurm; do \
		began=$$(date +%s); result=passed; \
		$(MAKE) --no-print-directory test-$$stage || { result=FAILED; code=1; }; \
		minutes="$$minutes$$(printf 'test %-9s%5d s  %s' $$stage $$(($$(date +%s) - began)) $$result)\n"; \
	done; printf "$$minutes"; exit $$code

# loadfile: all tests of a file run in one worker, which creates their shared fixtures. Without reordering, the files with the
# longest tests are not the last ones
test-parallel: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(PYTEST) -m parallel -n 2 --dist loadfile --no-loadscope-reorder

test-serial test-slurm: test-%: $(VENV)/installed-dev
	$(PYTEST) -m $*

# Runs that are killed and resumed, longer variants of other tests, and the hypothesis tests with new random examples
torture: $(VENV)/installed-dev
	TORTURE_LONG=1 $(PYTEST) -s tests/launch/test_torture.py tests/launch/test_elastic.py tests/launch/test_emulator.py \
		tests/launch/test_next_item.py tests/trees/test_torture_trees.py tests/predictor/service
	TORTURE_LONG=1 $(PYTEST) -m "hypothesis or torture"

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layout.py tests/test_loaded_modules.py
	$(BIN)/python scripts/benchmark.py figures check=true

fix: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

figures: $(VENV)/installed
	$(BIN)/python scripts/benchmark.py figures

bench: $(VENV)/installed
	for figure in help_times startup counts checkpoints checkpoints_sharded loader overhead scaling knobs threads trees seeds memory growth; do $(BIN)/python scripts/benchmark.py $$figure || exit; done

bench-gpu: $(VENV)/installed
	$(BIN)/python scripts/benchmark.py gpu
	$(BIN)/python scripts/benchmark.py overhead_gpu

pains: $(VENV)/installed-dev
	$(BIN)/python scripts/benchmark.py pains

bench-autogluon: $(VENV)/installed $(AUTOGLUON_VENV)/$(AUTOGLUON)
	$(BIN)/python scripts/benchmark.py autogluon python=$(AUTOGLUON_VENV)/bin/python

bench-tables: $(VENV)/installed $(AUTOGLUON_VENV)/$(AUTOGLUON)
	$(BIN)/python scripts/benchmark.py tables tables=$(TABLES) python=$(AUTOGLUON_VENV)/bin/python

clean:
	rm -rf $(VENV) $(AUTOGLUON_VENV) *.egg-info
	@echo "runs/ stays, since it may contain your results"

$(VENV)/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
		{ echo "error: the pinned packages are not built for $$($(PYTHON) --version):" \
		"use 3.11 to 3.14, as in make PYTHON=python3.14"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: venv is missing: apt install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(AUTOGLUON_VENV)/$(AUTOGLUON):
	$(PYTHON) -m venv $(AUTOGLUON_VENV)
	$(AUTOGLUON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 \
		'autogluon.tabular[lightgbm,catboost,xgboost,fastai,ray]==$(AUTOGLUON)'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@
