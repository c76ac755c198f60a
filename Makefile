# `make help` lists what there is. Each target is one script that can be read and run by itself.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-full bench bench-quick build dist image cluster-up cluster-down clean

help:      ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:      ## kubectl through the tunnel, on a real cluster, over every carrier (DEMO=once|stay, CARRIER=quic|h2|websocket, KUBECONFIG)
	@tests/demo/demo

test:      ## formatting, lints, unit, integration and end-to-end tests; what they need is installed (as root) or named
	@tests/run

test-full: ## the same with the long tests: every client by every protocol by every carrier, and idle sessions for ten minutes
	@tests/run --full

bench:     ## Towline beside its peers, as root: about 38 minutes, and about 20 before it for `make dist`; figures and a page with plots in target/bench, and the targets that hold or do not
	@bench/run

bench-quick: ## the same in a few minutes, to show that it works; its figures decide nothing
	@bench/run --quick

build:     ## the program under its three names, static and optimised, in target/<host>/release
	@docker/build binaries

dist:      ## the same, trained for what they do most, in target/<host>/dist: more than a quarter less processor time, about 20 minutes on two processors
	@PROFILE=dist docker/build binaries

image:     ## docker archives of agent, extension-manager and gateway in target/image (PROFILE=dist: of the trained program; HELM: a static helm 4)
	@docker/build image agent
	@docker/build image extension-manager
	@docker/build image gateway

cluster-up: ## the real cluster that tests and demo use
	@tests/cluster/cluster up

cluster-down: ## ends it
	@tests/cluster/cluster down

clean: cluster-down ## ends the cluster and the demo, removes what was built
	@tests/demo/demo stop
	@cargo clean
