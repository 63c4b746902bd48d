# All commands of this repository; `make` lists them.
# The Pythons that FracGPU supports; the first one found is used.
PYTHONS := 3.11 3.12 3.13 3.14
PYTHON ?= $(shell for it in $(PYTHONS:%=python%) python3; do $$it -c "" 2>/dev/null && echo $$it && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Named after its Python: a newer Debian, or another PYTHON, needs another environment.
READY := $(VENV)/ready-$(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])" 2>/dev/null)
DEMO ?=
BENCH ?=
GPU_CHECK ?=
# The closed-loop judge of rebalancing policies, and the usage trace that it replays.
JUDGE ?= ../shared/judge
TRACE ?= ../shared/usage-trace/gentd26_dev.csv.gz
JUDGED ?= none naive k-like benchmarks.judged_rebalancer:Policy
JUDGE_OPTIONS ?=
LOADS ?=
PYTEST ?=
IMAGES ?=
IMAGE ?=
REGISTRY ?=
SKOPEO ?=
LOCK ?=
MODULE ?=
FILE ?=
RECORD ?=

.PHONY: help setup demo test near check lint types imports format hooks e2e card gpu-check test-pythons bench bench-rebalancer bench-loads fuzz soak mutants \
	lock proto can-push manifests commands image push images clean

##@ Start here

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv from pinned versions; find or install Prometheus
	@bash tools/setup_prometheus.sh

COMPILED = $(addprefix fracgpu/placement/policies/least_waste/,least_waste.c library.py) deviceplugin/container/verify.c

$(READY): requirements.lock pyproject.toml setup.py $(COMPILED) tools/setup_venv.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) bash tools/setup_venv.sh
	@touch $@

demo: setup ## the whole system on a simulated cluster, about 75 s (options: DEMO="--keep --duration 120")
	@$(BIN)/fracgpu demo $(DEMO)

# Hundreds of processes start in a run of the tests. Where the environment forbids bytecode files, each
# would compile all that it imports, and each worker the assertions of all tests.
test e2e: export PYTHONDONTWRITEBYTECODE =

test: setup ## unit, property, contract and scenario tests
	$(BIN)/pytest -n auto --dist worksteal -m "not e2e and not card" --ignore=tests/e2e --ignore=tests/card $(PYTEST)

near: setup ## the tests nearest to a file, in seconds: FILE=fracgpu/request/grant.py
	@$(BIN)/python tools/near.py $(FILE)

##@ Before a commit

check: lint types imports test ## everything that must be green

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

imports: setup ## check the layers of docs/architecture.md
	$(BIN)/lint-imports

format: setup ## let ruff write the format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: setup ## have git run lint and imports before each commit, types before each push
	$(BIN)/pre-commit install

##@ On other Pythons, on real parts, and in figures

test-pythons: ## make test on each supported Python that is installed; says which are not
	@MAKE=$(MAKE) bash tools/test_pythons.sh $(PYTHONS)

e2e: setup ## tests against a real control plane; KUBEBUILDER_ASSETS names the folder with its binaries (RECORD=1: keep its answers for make test)
	FRACGPU_RECORD=$(RECORD) $(BIN)/pytest -m e2e --ignore=tests/card $(PYTEST)

card: setup ## tests on a physical card, in containers as well where KUBEBUILDER_ASSETS names a kubelet and there is nvidia-ctk
	$(BIN)/pytest -m card tests/card $(PYTEST)

gpu-check: setup ## prove on this node, as root, that limits of cards' memory hold, and print a report (options: GPU_CHECK="--mib 4096")
	@$(BIN)/python -m benchmarks.gpu_check $(GPU_CHECK)

bench: setup ## run benchmarks; one JSON line per figure (options: BENCH="webhook extender", BENCH=--list)
	@$(BIN)/python -m benchmarks $(BENCH)

bench-rebalancer: setup ## judge the rebalancer's decisions on a usage trace, beside other policies (JUDGE=, TRACE=, JUDGE_OPTIONS="--seeds 2")
	@test -f "$(JUDGE)/__main__.py" || { echo "no rebalancing judge in '$(JUDGE)'; set JUDGE=/its/folder" >&2; exit 2; }
	@test -f "$(TRACE)" || { echo "no usage trace '$(TRACE)'; set TRACE=/path/to/it" >&2; exit 2; }
	$(BIN)/python "$(JUDGE)" --trace "$(TRACE)" --policy $(JUDGED) $(JUDGE_OPTIONS)

bench-loads: setup ## lost hours of nothing, the rebalancer and an oracle on loads it was not tuned to (JUDGE=, LOADS="--seeds 2 --loads regime")
	@test -f "$(JUDGE)/robust.py" || { echo "no rebalancing judge in '$(JUDGE)'; set JUDGE=/its/folder" >&2; exit 2; }
	$(BIN)/python -m benchmarks.held_out_loads "$(JUDGE)" $(LOADS)

fuzz: setup ## 100,000 odd AdmissionReviews and 5,000 adversarial ones against the real webhook (minutes)
	$(BIN)/python -m benchmarks.webhook.fuzz --count 100000 --dear 5000

soak: setup ## 50,000 pods come and go in 30 minutes, and leaders change; fails if memory grew (options: SOAK="--minutes 5")
	@$(BIN)/python -m benchmarks.soak $(SOAK)

mutants: setup ## say which changes of the decision code no test notices (options: MODULE=fracgpu/request/grant.py SHARE=0.2 TESTS=tests/fracgpu/request)
	@$(BIN)/python -m tools.mutants $(MODULE) $(if $(SHARE),--share $(SHARE)) $(if $(TESTS),--tests $(TESTS))

##@ Upkeep

# Each version with the hashes of its files for every platform. Without LOCK=--upgrade the versions
# that are pinned stay, and only what pyproject.toml has new is added.
COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	--no-annotate --no-header --generate-hashes --extra all pyproject.toml

lock: $(READY) ## pin what pyproject.toml has new, with hashes (LOCK=--upgrade: the newest of everything)
	$(BIN)/pip install --quiet uv
	$(COMPILE) $(LOCK) --group dev --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --output-file requirements-image.lock

image: $(READY) ## build the image for amd64 and arm64, with its bill of materials (IMAGE="--platform amd64")
	@$(BIN)/python -m tools.image $(IMAGE)

VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
ARCHIVE = build/image/fracgpu-$(VERSION).oci.tar

push: can-push image ## build the image and push it: REGISTRY=registry.example.com/team (options: SKOPEO="--dest-tls-verify=false")
	@test -f $(ARCHIVE) || { echo "make push: $(ARCHIVE) is missing" >&2; exit 2; }
	skopeo copy --all $(SKOPEO) oci-archive:$(ARCHIVE) docker://$(REGISTRY)/fracgpu:$(VERSION)

can-push:
	@test -n "$(REGISTRY)" || { echo "make push: want REGISTRY=registry.example.com/team" >&2; exit 2; }
	@command -v skopeo >/dev/null || { echo "make push: skopeo is missing; on Debian: apt-get install skopeo" >&2; exit 2; }

proto: setup ## generate deviceplugin/proto from our .proto files
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
		deviceplugin/proto/cri.proto deviceplugin/proto/deviceplugin.proto deviceplugin/proto/dra.proto \
		deviceplugin/proto/pluginregistration.proto deviceplugin/proto/podresources.proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
		deviceplugin/proto/nri.proto deviceplugin/proto/ttrpc.proto

manifests: setup ## render deploy/ from the Helm chart, charts/fracgpu, and write its schema (needs helm)
	$(BIN)/python -m tools.manifests

commands: setup ## write the reference of all commands at the end of docs/commands.md
	$(BIN)/python -m cli.reference

images: setup ## list the images that a cluster pulls (options: IMAGES="--kubernetes 1.33.5")
	@$(BIN)/python -m tools.manifests.images $(IMAGES)

clean: ## remove what the other targets made
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +
	rm -f fracgpu/placement/policies/least_waste/least_waste-*.so deviceplugin/container/verify-*64
	rm -rf .venv .venv-3.* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
