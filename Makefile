# Two commands on a machine with Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-slow lint types amortised bars natural natural-h table1 table2 table-n2v inpainting pictures pictures-colour noise real harmless peers \
	runtime paper record report chaos fuzz scaling bench wheel clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# torch first and pinned: a later version would bring several GB of accelerator packages along
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) --editable .
	@for name in $$CXX c++ g++ clang++; do command -v $$name >/dev/null && exit; done; \
		$(INSTALL) --editable '.[compiler]' || echo "no C++ compiler: training will be several times slower"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## denoise a picture and say where the figure is
	$(BIN)/python -m tvae.denoise dataset=camera noise=25 hydra.run.dir=outputs/demo
	@echo "see outputs/demo/figures/comparison.png: input, restored, uncertainty and difference"

test: lint types  ## lint, types and the whole suite
	$(BIN)/python -m pytest -m "not slow" -n 2

test-slow: $(VENV)/.installed-dev  ## reproductions on real work
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev  ## mypy
	$(BIN)/mypy

# The paper's results. BUDGET=quick: minutes a cell; BUDGET=paper: its parameters and epochs, half an hour a cell and more.
# A repeated command skips finished runs and resumes unfinished ones.
BUDGET ?= quick
ifeq ($(filter quick paper,$(BUDGET)),)
$(error BUDGET=$(BUDGET): must be quick or paper)
endif
SUFFIX := $(if $(filter quick,$(BUDGET)),_quick)
# Runs at a time, -1 being one for each core: of two cores, two runs make more than one run does with both.
JOBS ?= -1
SWEEP := $(BIN)/python -m tvae.train -m hydra/launcher=joblib hydra.launcher.n_jobs=$(JOBS)
TABLE_SEEDS := corruption_seed=0,1,2
# A sweep that has failed does not stop the next one, and the table is made of what has finished.
BEGIN := status=0;
OR := || status=1;
COLLECT = $(BIN)/python -m scripts.paper.tables $@ $(OR) exit $$status
OPTIONS ?=

bars: $(VENV)/.installed-joblib  ## the paper's first experiment: ten seeds each of bars and correlated bars, with figures
	$(BEGIN) $(SWEEP) experiment=bars,bars_correlated seed=0,1,2,3,4,5,6,7,8,9 hydra.sweep.dir=outputs/bars/runs $(OR) \
	$(BIN)/python -m scripts.paper.bars $(OR) exit $$status

NATURAL_DIR := outputs/natural/$(BUDGET)
NATURAL := $(BIN)/python -m tvae.train -m hydra.sweep.dir=$(NATURAL_DIR)
SEEDS ?= 0,1,2
# epochs of the linear decoder, and from where it has ended
BEFORE ?= $(if $(SUFFIX),40,100)
AFTER ?= $(if $(SUFFIX),10,100)

natural: $(VENV)/.installed  ## the paper's second: whitened patches, linear to deep; SEEDS=0 AFTER=100 OPTIONS="..."
	$(BEGIN) $(NATURAL) experiment=natural_linear seed=$(SEEDS) hydra.sweep.subdir='linear_$${seed}' \
		epochs=$(BEFORE) $(OPTIONS) $(OR) \
	$(NATURAL) experiment=natural_deep seed=$(SEEDS) init_from='$(NATURAL_DIR)/linear_$${seed}' \
		hydra.sweep.subdir='deep_$${seed}' epochs=$(AFTER) $(OPTIONS) $(OR) \
	$(NATURAL) experiment=natural_linear seed=$(SEEDS) init_from='$(NATURAL_DIR)/linear_$${seed}' \
		hydra.sweep.subdir='continued_$${seed}' epochs=$(AFTER) $(OPTIONS) $(OR) \
	$(BIN)/python -m scripts.paper.natural $(NATURAL_DIR) $(OR) exit $$status

# The more latents, the more children of a parent, so that as large a share of the flips is tried. On 20,000 patches 1000
# latents fit the training patches and lose on held-out ones, so that both budgets have 100,000.
LATENTS ?= 100 300 1000
NATURAL_H := $(if $(SUFFIX),natural_linear epochs=12,natural_h1000)

natural-h: $(VENV)/.installed  ## time and ELBO against the number of latents; a linear decoder, BUDGET=paper: deep, 100 epochs
	$(BEGIN) for h in $(LATENTS); do \
		$(NATURAL) experiment=$(NATURAL_H) model.n_latents=$$h ea.n_parents=5 ea.n_children=$$((h / 10)) seed=$(SEEDS) \
			hydra.sweep.subdir='h_$${model.n_latents}_$${seed}' $(OPTIONS) $(OR) done; \
	$(BIN)/python -m scripts.paper.natural $(NATURAL_DIR) $(OR) exit $$status

table1: peers $(VENV)/.installed-joblib  ## house, 8x8 patches, 64 latents, sigma 15, 25, 50, beside other systems; BUDGET=quick or paper
	$(BEGIN) $(SWEEP) experiment=table1$(SUFFIX) $(OR) \
	$(SWEEP) experiment=table1_quick model=linear epochs=40 hydra.sweep.dir=outputs/table1/linear $(OR) \
	$(SWEEP) experiment=table1_quick model=slab model.slab=1 model.prior=bernoulli ea.n_candidates=64 epochs=30 \
		hydra.sweep.dir=outputs/table1/slab $(OR) $(COLLECT)

table2: peers $(VENV)/.installed-joblib  ## house, the best settings for each sigma
	$(TABLE2)

table-n2v: peers $(VENV)/.installed-joblib  ## the same runs beside noise2void
	$(TABLE2)

TABLE2 = $(BEGIN) $(if $(SUFFIX),,$(SWEEP) experiment=table1 noise=15,25 $(TABLE_SEEDS) $(OR)) \
	$(SWEEP) experiment=table2$(SUFFIX) $(OR) \
	$(SWEEP) experiment=table2_quick model=slab restoration=posterior_mean hydra.sweep.dir=outputs/table2/slab $(OR) $(COLLECT)

# castle is in colour, takes longest, and the paper does not have it
CASTLE_quick := experiment=inpainting_quick dataset=castle missing=0.5,0.8 missing_per=channel corruption_seed=0
CASTLE_paper := experiment=castle_50,castle_80 $(TABLE_SEEDS) seed='$${corruption_seed}' \
	hydra.sweep.dir=outputs/inpainting/paper

inpainting: peers $(VENV)/.installed-joblib  ## house with half of its pixels, castle with half and a fifth of its values
	$(BEGIN) $(SWEEP) experiment=inpainting$(SUFFIX) dataset=house missing=0.5 $(TABLE_SEEDS) $(OR) \
	$(SWEEP) $(CASTLE_$(BUDGET)) \
		hydra.sweep.subdir='"dataset=$${dataset.name},missing=$${missing},missing_per=channel,seed=$${seed}"' $(OR) $(COLLECT)

# The development set. The sweeps run inside the folder of the pictures, so that a run is called by its picture's name.
HALF ?= B
EFFORT ?= default
NOISE ?= 15,25,50
MISSING ?= 0.5,0.8
PICTURES := outputs/pictures
RESTORE = (cd $(PICTURES)/clean && $(abspath $(BIN))/python -m tvae.$(1) -m hydra/launcher=joblib \
	hydra.launcher.n_jobs=$(JOBS) image=$$images $(2)=$(3) $(4) corruption_seed=$(SEEDS) seed='$${corruption_seed}' \
	effort=$(EFFORT) hydra.sweep.dir=../runs \
	hydra.sweep.subdir='"$${effort}/$${image},$(2)=$${$(2)},seed=$${seed}"' $(OPTIONS)) $(OR)

pictures: $(VENV)/.installed-joblib $(VENV)/.installed-peers  ## 16 pictures beside BM3D; HALF=A, B or AB, EFFORT=best, NOISE=, MISSING= for none
	$(BEGIN) images=$$($(BIN)/python -m scripts.pictures.development_set $(HALF) $(PICTURES)/clean) || exit 2; \
	$(if $(NOISE),$(call RESTORE,denoise,noise,$(NOISE),corruption=gaussian)) \
	$(if $(MISSING),$(call RESTORE,inpaint,missing,$(MISSING))) \
	$(BIN)/python -m scripts.pictures.table $(OR) exit $$status

pictures-colour:  ## 12 pictures in colour beside CBM3D; HALF=, EFFORT=, NOISE= as above, MISSING=0.5 OPTIONS="..."
	$(MAKE) pictures HALF=colour-$(HALF) MISSING=$(if $(filter command line,$(origin MISSING)),$(MISSING))

noise: $(VENV)/.installed-peers  ## photon counts, correlated noise, outliers: told what they are, and restored; half an hour and more
	$(BIN)/python -m scripts.pictures.noise trials
	$(BIN)/python -m scripts.pictures.noise table --half $(HALF) --effort $(EFFORT)

real: $(VENV)/.installed  ## microscopy frames and photographs with real noise, beside BM3D; REAL="--only Confocal"
	$(BIN)/python -m scripts.pictures.real $(REAL)

harmless: $(VENV)/.installed  ## text, rules, stars, dots and clean pictures: nothing of them is removed
	$(BIN)/python -m scripts.pictures.harmless

peers: $(VENV)/.installed-peers  ## other systems on the same noisy arrays
	-$(BIN)/python -m scripts.paper.peers

# without them the tables are made all the same
$(VENV)/.installed-peers: $(VENV)/.installed
	$(INSTALL) --editable '.[peers]' && touch $@ || echo "not all of the other systems could be installed"

$(VENV)/.installed-joblib: $(VENV)/.installed
	$(INSTALL) --editable '.[joblib]'
	@touch $@

amortised: $(VENV)/.installed  ## evolution beside encoder networks with the same decoder: ELBO over seconds; AMORTISED="bars --seeds 0"
	$(BIN)/python -m scripts.paper.amortised $(AMORTISED)

runtime: $(VENV)/.installed  ## seconds per epoch against S, H, N and D
	$(BIN)/python -m scripts.bench.runtime

paper:  ## all of the above, and the report; continues where one has failed
	$(BEGIN) $(MAKE) --keep-going bars natural natural-h table1 table2 table-n2v inpainting runtime $(OR) \
	$(MAKE) report $(OR) exit $$status

record: $(VENV)/.installed  ## keep finished runs of BUDGET=paper in docs/paper, and draw their curves
	$(BIN)/python -m scripts.paper.record

report: $(VENV)/.installed  ## one HTML page of all results found in outputs
	$(BIN)/python -m scripts.paper.report

chaos: $(VENV)/.installed  ## kill a run 100 times and compare its end with an undisturbed one; CHAOS="--ranks 2"
	$(BIN)/python -m scripts.fuzz.chaos $(CHAOS)

MINUTES ?= 60
fuzz: $(VENV)/.installed-dev  ## hostile options, files, runs and checkpoints for an hour; MINUTES=60 FUZZ="--seed 1"
	$(BIN)/python -m scripts.fuzz.fuzzer --minutes $(MINUTES) $(FUZZ)

scaling: $(VENV)/.installed  ## two processes against one; writes outputs/scaling
	$(BIN)/python -m scripts.bench.scaling

bench: $(VENV)/.installed-peers  ## seconds of a restoration beside BM3D, and of an epoch at the paper's settings; writes outputs/bench
	$(BIN)/python -m scripts.bench.restoring
	$(BIN)/python -m scripts.bench.training

# The platform of the wheel: a tag in hatch_build.py, by default this machine's.
FOR ?= $(if $(filter Linux,$(shell uname -s)),manylinux_2_17_$(shell uname -m))

wheel: $(VENV)/.installed-dev  ## a wheel with the kernel compiled, in dist; FOR=win_amd64 and others for other platforms
	$(INSTALL) --editable '.[compiler]'
	TVAE_WHEEL_FOR=$(FOR) $(BIN)/python -m build --wheel --no-isolation

clean:  ## remove the environment and caches, keep outputs
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
