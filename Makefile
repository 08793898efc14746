# Every target sets up what it needs: .venv from the lock, missing Debian packages, test servers built with Go.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PATH := $(PATH):/usr/local/go/bin
export PATH
unexport MAKEFLAGS

BIN := .venv/bin
IMAGE ?= corepin:dev
# Pure code, of which the tests must cover every branch.
PURE := pinning/*,published/*,webhook/rules/*,drawing/*,dashboard/model/*,dashboard/view/*

BENCHES := $(patsubst bench/%.py,bench.%,$(wildcard bench/allocate.py bench/nri.py bench/plan.py bench/vm_threads.py bench/webhook.py)) bench.shim

.PHONY: help setup demo try test unit e2e-smt soak check release version image bench mutations metrics arrows chart newest-uvicorn pictures proto renew-pins

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@scripts/setup

demo: setup ## send the examples to a real webhook, show its answers, plan their CPUs, and pin real processes
	@$(BIN)/python -m demo

try: setup ## run a one-node cluster with corepin on this machine, until Ctrl-C; SMT=1: on emulated cores of two threads
	@exec $(BIN)/python -m demo.cluster $(if $(SMT),--smt)

test: setup ## run every check and every test; builds Kubernetes and the image the first time
	@scripts/setup chromium
	@scripts/test
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=100

unit: setup ## run the tests that need no server, no container runtime and no emulated machine
	@COREPIN_KILLS=$${COREPIN_KILLS:-6} $(BIN)/pytest -q -n 2 -m 'not server and not runtime and not node and not smt'

mutations: setup ## mutation tests: change the pure code in a hundred places, one at a time; a test must fail each time
	@$(BIN)/python -m tests.mutations

e2e-smt: setup ## run clusters on emulated machines with many CPUs: 45 minutes on an idle machine
	@$(BIN)/pytest -m smt_cluster tests/smt_cluster

soak: setup ## start containers over NRI beside two busy loops, and restart their runtime: 10 minutes
	@scripts/soak

# The mypy cache is outside of the checkout, because it identifies files by content and serves new checkouts too.
check: setup ## check formatting, lint and types
	@$(BIN)/ruff format --check --quiet . || { echo 'run: .venv/bin/ruff format .'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/corepin/mypy"

release: setup ## build a release of the committed tree reproducibly into dist/
	@$(BIN)/python -m scripts.release $(if $(URL),--url '$(URL)') $(if $(AGAIN),--again)

version: setup # write VERSION=1.2.3 to every place of the version
	@$(BIN)/python -m scripts.release.version '$(VERSION)'

image: ## build the container image with docker, podman or buildah (IMAGE=corepin:dev)
	@scripts/image '$(IMAGE)'

bench: ## measure allocation, planning, threads of VMs, cmk isolate, the webhook and NRI, each beside a baseline
	@scripts/setup wrk
	@for module in $(BENCHES); do echo "== $$module"; $(BIN)/python -m "$$module"; done

renew-pins: setup ## pin the newest base image, Debian packages and actions in pins.toml, and copy the pins to their users
	@$(BIN)/python -m scripts.pins --renew

metrics: setup ## write docs/metrics.md from the programs
	@$(BIN)/python -m scripts.metrics_page

arrows: setup ## write the table of imports in docs/architecture.md from the code
	@$(BIN)/python -m tests.arrows

chart: setup ## generate the Helm chart, and the overlay of `corepin cmk cluster-init`, from manifests/
	@$(BIN)/python -m scripts.registration
	@$(BIN)/python -m scripts.chart
	@$(BIN)/python -m scripts.cmk_overlay

newest-uvicorn: setup ## test our subclasses of uvicorn with its newest release; can fail although `make test` passes
	@scripts/newest-uvicorn

pictures: setup ## write the README's picture of `corepin map`
	@$(BIN)/python -m tests.pictures

proto: setup ## generate the Python code of NRI's, CRI's and the kubelet's messages from *.proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/nri/wire/*.proto agent/kubelet/*.proto agent/cri/*.proto agent/dra/*.proto
