# Every target sets up what it needs: .venv from the lock, missing Debian packages, test servers built with Go.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PATH := $(PATH):/usr/local/go/bin
export PATH
unexport MAKEFLAGS

BIN := .venv/bin
IMAGE ?= corepin:dev
# What decides: every branch of it is tested.
PURE := pinning/*,published/*,webhook/rules/*,drawing/*,dashboard/model/*,dashboard/view/*

BENCHES := $(patsubst bench/%.py,bench.%,$(wildcard bench/allocate.py bench/nri.py bench/plan.py bench/vm_threads.py bench/webhook.py)) bench.shim

.PHONY: help setup demo try test unit e2e-smt soak check release version image bench mutations metrics arrows chart newest-uvicorn pictures proto renew-pins

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@scripts/setup

demo: setup ## start the webhook, send it the examples, show what it says and which CPUs they would get
	@$(BIN)/python -m demo

try: setup ## a cluster of one node on this machine with corepin installed, until Ctrl-C; SMT=1: on cores of two threads
	@exec $(BIN)/python -m demo.cluster $(if $(SMT),--smt)

test: setup ## every check and every test; builds Kubernetes and the image the first time
	@scripts/setup chromium
	@scripts/test
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=100

unit: setup ## the tests that need no server, no container runtime and no emulated machine
	@COREPIN_KILLS=$${COREPIN_KILLS:-6} $(BIN)/pytest -q -n 2 -m 'not server and not runtime and not node and not smt'

mutations: setup ## break what decides in a hundred places, one at a time: some test has to fail each time
	@$(BIN)/python -m tests.mutations

e2e-smt: setup ## whole clusters on emulated machines with many CPUs: 45 minutes, and more when busy
	@$(BIN)/pytest -m smt_cluster tests/smt_cluster

soak: setup ## containers started over NRI beside two busy loops, and their runtime restarted: 10 minutes
	@scripts/soak

# mypy knows files by their contents: a new checkout is not looked at as a whole again.
check: setup ## formatting, lint, types
	@$(BIN)/ruff format --check --quiet . || { echo 'run: .venv/bin/ruff format .'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/corepin/mypy"

release: setup ## build what a release consists of into dist/, of what is committed, the same bytes each time
	@$(BIN)/python -m scripts.release $(if $(URL),--url '$(URL)') $(if $(AGAIN),--again)

version: setup # write VERSION=1.2.3 wherever the version is named
	@$(BIN)/python -m scripts.release.version '$(VERSION)'

image: ## build the container image with docker, podman or buildah (IMAGE=corepin:dev)
	@scripts/image '$(IMAGE)'

bench: ## measure allocation, planning, threads of VMs, cmk isolate, the webhook and NRI, each beside a baseline
	@scripts/setup wrk
	@for module in $(BENCHES); do echo "== $$module"; $(BIN)/python -m "$$module"; done

renew-pins: setup ## pin the newest base image, Debian packages and actions in pins.toml, and write them where they are used
	@$(BIN)/python -m scripts.pins --renew

metrics: setup ## write docs/metrics.md from the programs
	@$(BIN)/python -m scripts.metrics_page

arrows: setup ## write the table of imports of docs/architecture.md from the code
	@$(BIN)/python -m tests.arrows

chart: setup ## write what is made of manifests/: the Helm chart, and the overlay of `corepin cmk cluster-init`
	@$(BIN)/python -m scripts.registration
	@$(BIN)/python -m scripts.chart
	@$(BIN)/python -m scripts.cmk_overlay

newest-uvicorn: setup ## run the tests of our subclasses of uvicorn against its newest release; it may fail alone
	@scripts/newest-uvicorn

pictures: setup ## write the map of the README's picture
	@$(BIN)/python -m tests.pictures

proto: setup ## write the Python code of NRI's and the kubelet's messages from their *.proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/nri/wire/*.proto agent/kubelet/*.proto agent/cri/*.proto agent/dra/*.proto
