# Reprise: `make run` starts it, `make test` tests it.
CARGO ?= cargo

.PHONY: help run cluster build test wasm console package check tidy

help: ## This list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

run: build ## Build and start the server with the sample modules deployed (LISTEN=ADDR, DATA_DIR=DIR)
	@exec xtask/run.sh

cluster: build ## Build and start a primary and two standbys on this machine (PORT=N, DATA_DIR=DIR)
	@exec xtask/cluster.sh

build: ## Build the server, the sample modules and the console
	@xtask/bootstrap.sh run
	$(CARGO) xtask wasm
	$(CARGO) xtask console
	$(CARGO) build --release --package reprise-node

test: ## Build everything and run all tests
	@xtask/bootstrap.sh test
	$(CARGO) xtask wasm
	$(CARGO) xtask console
	@! xtask/bootstrap.sh has-rdma || $(CARGO) xtask rdma
	@! xtask/bootstrap.sh has-etcd || $(CARGO) xtask etcd
	$(CARGO) build --release --workspace --all-targets
	@rm -f target/skipped-tests.txt
	$(CARGO) test --release --workspace --no-fail-fast
	cd web-console && npm test
	$(CARGO) xtask skipped

wasm: ## Build the sample modules to target/procedures/NAME.wasm
	@xtask/bootstrap.sh run
	$(CARGO) xtask wasm

console: ## Build the web console
	$(CARGO) xtask console

package: ## Build target/package/reprise, optimised by a profile (half an hour on two cores)
	@xtask/bootstrap.sh package
	$(CARGO) xtask wasm
	$(CARGO) xtask console
	$(CARGO) xtask package

check: ## Clippy and the rules of the tree
	$(CARGO) xtask check

tidy: ## The rules of the tree alone
	$(CARGO) xtask tidy
