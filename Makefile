# `make` lists the targets. The steps of `make check` are in .ci/run, which also works without
# make.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules --warn-undefined-variables
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Flags that `make soak` passes on: make soak SEEDS=1000 SOAK="-duration 10m -faults
# worker,server"; -h lists all flags.
SOAK  ?=
SEEDS ?= 100000
# How many runs restart the server five times under load. A run takes some 20 seconds;
# RESTARTS=10 makes fewer runs.
RESTARTS ?= 200
# Flags that `make bench` passes on: make bench BENCH="-rounds 3 goals"; -h lists all flags.
BENCH ?=

.PHONY: help build test soak bench check race vet format docs lint nested sdks packages fuzz image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/toolfleet, one static binary
	CGO_ENABLED=0 go build -trimpath -o bin/toolfleet ./cmd/toolfleet

test: ## run every test of the module; needs only Go
	go test ./...

soak: ## the long tests, 100,000 seeds of the simulation, 200 runs of server restarts, then an hour of breaking real processes; flags in SOAK, -h lists them
	@echo "$(SEEDS) seeds of the simulation, some 1,000 a second; SEEDS=1000 for fewer"
	go test ./internal/sim -sim.seeds=$(SEEDS) -sim.orders=8 -timeout 1h
	go test ./internal/e2e -long -many=10000 -timeout 1h
	go test ./worker/tool/builtin ./schemas/safety -run 'Payloads|Injections' -long -timeout 1h
	go test ./internal/e2e/process -run TestEveryEffectHasItsLine -audit.kills=200 -timeout 1h
	go test ./worker/tool/process -run 'TestAttacks' -attack.rounds=1000 -timeout 8h
	TOOLFLEET_HTTP_ROUNDS=10 go test ./internal/httpapi -run 'TestMany|TestLargeBodies|TestSlowClients|TestSingleCalls' -timeout 1h
	go test ./internal/httpapi -run '^$$' -fuzz '^FuzzRequests$$' -fuzztime 300000x
	go test ./internal/httpapi -run '^$$' -fuzz '^FuzzMCP$$' -fuzztime 300000x
	SDK_ROUNDS=200 .ci/run sdks
	TOOLFLEET_ROUNDS=200 .ci/run packages
	go run ./internal/e2e/soak/run -scenario restarts -runs $(RESTARTS)
	go run ./internal/e2e/soak/run $(SOAK)

bench: ## compare with raw JetStream, and with asynq and river where their servers are; some 25 minutes, tables and flags in BENCH
	cd bench && go run . $(BENCH)

check: ## do everything that CI does
	.ci/run

race: ## run every test under the race detector
	.ci/run race

vet: ## run go vet
	.ci/run vet

format: ## list the files that gofmt would change
	.ci/run format

docs: ## find links in the documents that lead nowhere
	.ci/run docs

lint: ## run staticcheck, built from the module proxy
	.ci/run lint

nested: ## vet and test the nested modules: manifests, provider SDKs
	.ci/run nested

sdks: ## try the MCP server with the clients of npm and the conformance suite, and servers of npm; needs npm
	.ci/run sdks

packages: ## pack and try the packages for TypeScript and Python, and the recipes; needs npm and python3
	.ci/run packages

fuzz: ## run each fuzz target FUZZTIME times (500x)
	.ci/run fuzz

image: ## build the container image toolfleet:dev (needs docker)
	docker build -t toolfleet:dev .

clean: ## remove what build made
	rm -rf bin
