# Reprise: `make run` starts it, `make test` tests it.
CARGO ?= cargo
# In the tests' profile, with the features of the whole tree: its dependencies are those that the tests are built with.
XTASK = $(CARGO) build --quiet --profile quick --workspace --bin xtask && target/quick/xtask

.PHONY: help run cluster build test test-unit test-sim test-process test-hardware test-console wasm console package figures check tidy

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

run: build ## Build and start the server with the sample modules deployed (LISTEN=ADDR, DATA_DIR=DIR)
	@exec xtask/run.sh

cluster: build ## Build and start a primary and two standbys on this machine (PORT=N, DATA_DIR=DIR)
	@exec xtask/cluster.sh

build: ## Build the server, the sample modules and the console
	@xtask/bootstrap.sh run
	$(CARGO) xtask wasm
	$(CARGO) xtask console
	$(CARGO) build --release --package reprise-node

test: ## Build everything and run all tests: the five stages below
	@xtask/bootstrap.sh test
	$(XTASK) test

test-unit: ## Unit tests, and the integration tests of each crate
test-sim: ## The engine by seeds, in one thread: order, faults, crashes
test-process: ## Real servers: signals, files, sockets
test-hardware: ## Servers in virtual machines: power, NVDIMMs, RDMA
test-console: ## The web console in Chromium
test-unit test-sim test-process test-hardware test-console:
	@xtask/bootstrap.sh $@
	$(XTASK) test $(@:test-%=%)

wasm: ## Build the sample modules to target/procedures/NAME.wasm
	@xtask/bootstrap.sh run
	$(CARGO) xtask wasm

console: ## Build the web console
	$(CARGO) xtask console

package: ## Build reprise and reprise-bench in target/package, optimised by a profile (over half an hour on two cores)
	@xtask/bootstrap.sh package
	$(CARGO) xtask wasm
	$(CARGO) xtask console
	$(CARGO) xtask package

figures: ## Draw the papers' figures and docs/EVALUATION.md (NAMES="looking-glass query-fresh-7", QUICK=1)
	@xtask/bootstrap.sh run
	$(CARGO) xtask evaluation $(if $(QUICK),--quick) $(NAMES)

check: ## Clippy and the rules of the tree
	@xtask/bootstrap.sh check
	$(XTASK) check

tidy: ## The rules of the tree alone
	$(XTASK) tidy
