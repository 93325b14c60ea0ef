# Everything runs from the root of the workspace; each module also builds alone.
GOLANGCI_LINT_VERSION := v2.15.0
STATICCHECK_VERSION   := v0.8.2
GOFUMPT_VERSION       := v0.12.0
BUF_VERSION           := v1.75.0
PROTOC_GO_VERSION     := v1.36.12
PROTOC_GRPC_VERSION   := v1.6.2

# A count and not a duration: what CI tries is then the same on every machine.
FUZZTIME ?= 20000x

# Lazy, so that `make help` needs no Go.
MODULES = $(shell go list -m -f '{{.Dir}}')
UNIT    = $(addsuffix /...,$(filter-out %/integration,$(MODULES)))
BIN     = $(CURDIR)/bin

# These tests wait more than they work: four at once, also on two CPUs.
INTEGRATION = -parallel 4 ./integration/...

.DEFAULT_GOAL := help
.PHONY: help build test unit race allocations integration matrix bench bench-full bench-edge bench-edge-full proof proof-short sizing lint fmt fmt-check vet imports-check tidy tidy-check proto proto-check fuzz fuzz-long bench-control demo demo-edge demo-control soak-edge soak-edge-long h2spec-edge serve release-check

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build every module, in the workspace and alone
	go build work
	@for m in $(MODULES); do echo "GOWORK=off go vet ./... in $$m"; (cd $$m && GOWORK=off go vet ./...) || exit 1; done

test: ## all tests, on a real Redis; a Debian without one gets it installed
	@scripts/test-redis
	go test $(RACE) -count=1 $(UNIT)
	go test $(RACE) -count=1 $(INTEGRATION)

unit: ## the tests that need no Redis
	go test $(UNIT)

race: ## the same under the race detector (needs a C compiler)
	@$(MAKE) test allocations RACE=-race

allocations: ## the tests that the race detector leaves out, for it allocates by itself
	go test -count=1 -run Allocat $(addsuffix /...,$(filter %/core %/sentinelhttp %/sentinelgin %/sentinelecho %/sentinelchi,$(MODULES)))

integration: ## the tests on a real Redis; see integration/redistest for which one
	@scripts/test-redis
	go test -count=1 $(INTEGRATION)

matrix: ## the tests on Redis 6.0, 7.0, 8.0 and Valkey 8.1; needs root, for debootstrap
	@scripts/matrix

bench: ## the benchmarks, short: everything runs, every answer is right
	@SENTINEL_TEST_REDIS=process scripts/test-redis
	go run ./bench

bench-full: ## the benchmarks for real, into docs/benchmarks.md; on an idle machine
	@SENTINEL_TEST_REDIS=process scripts/test-redis
	go run ./bench -full -o docs/benchmarks.md

bench-edge: ## the edge's benchmarks, short: every proxy that is there runs, every answer is right
	@scripts/edge-bench-needs
	go run ./edge/bench

bench-edge-full: ## the edge beside nginx, HAProxy, Caddy and net/http, into docs/edge-benchmarks.md; on an idle machine
	@scripts/edge-bench-needs caddy
	go run ./edge/bench -full -o docs/edge-benchmarks.md

proof: ## every promise under faults, contention, broken clocks and attack, into docs/proof.md; as root
	@scripts/proof-needs
	go run ./integration/proof -o docs/proof.md

proof-short: ## the same in two minutes and a half: the core of the faults, few tries, checks of 100 ms
	@scripts/proof-needs
	go run ./integration/proof -short

sizing: ## what tenants cost Redis, on each server of make matrix that is there
	@SENTINEL_TEST_REDIS=process scripts/test-redis
	go run ./integration/proof -only sizing

lint: fmt-check vet $(BIN)/.golangci-lint@$(GOLANGCI_LINT_VERSION) $(BIN)/.staticcheck@$(STATICCHECK_VERSION) ## gofumpt, go vet, golangci-lint, staticcheck
	$(BIN)/golangci-lint run $(addsuffix /...,$(MODULES))
	$(BIN)/staticcheck work

fmt: $(BIN)/.gofumpt@$(GOFUMPT_VERSION) ## format all Go files
	$(BIN)/gofumpt -w $(MODULES)

fmt-check: $(BIN)/.gofumpt@$(GOFUMPT_VERSION) ## fail if a Go file is not formatted
	@bad=$$($(BIN)/gofumpt -l $(MODULES)) && [ -z "$$bad" ] || { echo "not formatted, run make fmt:"; echo "$$bad"; exit 1; }

vet: ## go vet
	go vet work

imports-check: ## who may import whom
	go test -count=1 ./integration/importrules

tidy: ## go work sync, then go mod tidy in every module
	go work sync
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy) || exit 1; done

tidy-check: ## fail if make tidy would change a file
	@scripts/tidy-check

PROTO_TOOLS = $(BIN)/.buf@$(BUF_VERSION) $(BIN)/.protoc-gen-go@$(PROTOC_GO_VERSION) $(BIN)/.protoc-gen-go-grpc@$(PROTOC_GRPC_VERSION)

proto: $(PROTO_TOOLS) ## generate edge/proto from control.proto
	cd edge/proto && PATH=$(BIN):$$PATH buf generate

proto-check: $(PROTO_TOOLS) ## fail if make proto would change a file
	@scripts/proto-check $(BIN)

fuzz: ## every fuzz target, FUZZTIME executions each (default 20000x)
	@scripts/fuzz $(FUZZTIME)

fuzz-long: ## every fuzz target for ten minutes, more than two hours in all
	@scripts/fuzz 10m

release-check: ## what a user of a release does: go get, the program of README, go install
	go run ./integration/releasecheck

demo: ## a tour: a guarded service fires at itself and explains what happens
	go run ./examples/quickstart -tour $(if $(shell command -v redis-server),-redis-server)

demo-edge: ## a tour of the edge: three backends of which some are not well, and what it does about that
	go run ./edge/internal/demo

bench-control: ## what a control plane costs, and how soon its nodes have an edit
	go run ./edge/internal/control/measure
	go test -run '^$$' -bench Version ./edge/internal/node
	go test -run '^$$' -bench TenThousand ./edge/internal/router

demo-control: ## a tour of the control plane: two nodes, an edit, a bad one, a rollback, a kill under load
	@scripts/demo-control

soak-edge: ## three minutes of the edge among faults: nothing grows, no answer is unexplained
	go run ./edge/internal/demo -soak 3m

soak-edge-long: ## the same for twenty minutes
	go run ./edge/internal/demo -soak 20m

h2spec-edge: $(BIN)/h2spec ## the edge's HTTP/2 against h2spec, and net/http's own beside it
	SENTINEL_H2SPEC=$(BIN)/h2spec go test -count=1 -v -run '^TestH2spec$$' ./edge/internal/edgetest

serve: ## the quickstart server, on 127.0.0.1:8080
	go run ./examples/quickstart

$(BIN)/.golangci-lint@%:
	GOBIN=$(BIN) GOWORK=off go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$*
	@touch $@

$(BIN)/.staticcheck@%:
	GOBIN=$(BIN) GOWORK=off go install honnef.co/go/tools/cmd/staticcheck@$*
	@touch $@

$(BIN)/h2spec: scripts/h2spec/go.mod scripts/h2spec/go.sum
	cd scripts/h2spec && GOWORK=off go build -o $@ github.com/summerwind/h2spec/cmd/h2spec

$(BIN)/.gofumpt@%:
	GOBIN=$(BIN) GOWORK=off go install mvdan.cc/gofumpt@$*
	@touch $@

$(BIN)/.buf@%:
	GOBIN=$(BIN) GOWORK=off go install github.com/bufbuild/buf/cmd/buf@$*
	@touch $@

$(BIN)/.protoc-gen-go@%:
	GOBIN=$(BIN) GOWORK=off go install google.golang.org/protobuf/cmd/protoc-gen-go@$*
	@touch $@

$(BIN)/.protoc-gen-go-grpc@%:
	GOBIN=$(BIN) GOWORK=off go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$*
	@touch $@
