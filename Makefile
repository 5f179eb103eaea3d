# Two commands for newcomers: `make demo` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PROTOCOL ?= white_box
SEEDS ?= 0:200
RUN_DIR ?= demo-run
BASE_PORT ?= 7600
REPLICAS ?= $(if $(filter skeen sequencer,$(PROTOCOL)),1,3)
PROTOCOLS ?= all
PYTEST_ARGS ?=
WORKERS ?= 4

# PYTEST_ARGS='-n 0' for one process, as for --pdb and -s.

# The stamp names this directory, so a checkout that was moved or copied is installed again.
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(shell pwd | cksum | cut -d' ' -f1)
PREPARED := $(VENV)/.prepared

export PYTHONUNBUFFERED := 1
# Compiled modules are kept, whatever the environment says: demo and tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-full lint format types bench compare conformance locust audit sim install java clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	echo
	echo "Variables: PROTOCOL=$(PROTOCOL) SEEDS=$(SEEDS) RUN_DIR=$(RUN_DIR) BASE_PORT=$(BASE_PORT) PYTEST_ARGS='-k name' WORKERS=$(WORKERS)"

demo: java $(PREPARED) ## run a cluster, kill a leader, audit what it did (PROTOCOL=skeen for no kill)
	@echo "==> Demo: 2 shards, protocol $(PROTOCOL)"
	start=$$SECONDS
	$(PYTHON) -m workloads.demo --protocol $(PROTOCOL)
	echo "==> Demo finished in $$((SECONDS - start)) s"

test: java $(PREPARED) ## all tests but the longest, in WORKERS processes
	@echo "==> Tests"
	start=$$SECONDS
	$(PYTHON) -m pytest -n $(WORKERS) $(PYTEST_ARGS)
	echo "==> Tests finished in $$((SECONDS - start)) s"

test-full: java $(PREPARED) ## all tests, with those that take long
	@echo "==> Tests, with those that take long"
	start=$$SECONDS
	$(PYTHON) -m pytest --full -n $(WORKERS) $(PYTEST_ARGS)
	echo "==> Tests finished in $$((SECONDS - start)) s"

lint: $(STAMP) ## ruff: style
	@$(PYTHON) -m ruff check .

format: $(STAMP) ## ruff: apply the safe fixes
	@$(PYTHON) -m ruff check --fix .

types: $(STAMP) ## mypy, strict
	@$(PYTHON) -m mypy

sim: $(STAMP) ## simulate PROTOCOL with SEEDS under faults, then measure its latency in message delays
	@$(PYTHON) -m multicast.simulation run --protocol $(PROTOCOL) --seeds $(SEEDS) --profile faults
	$(PYTHON) -m multicast.simulation latency

# Starts a fresh cluster in a temporary directory, stops and removes it when the recipe ends, whichever way.
define with_cluster
dir=$$(mktemp -d)
trap '$(VENV)/bin/kvstore cluster down "$$dir" || true; rm -rf "$$dir"' EXIT
$(VENV)/bin/kvstore cluster init "$$dir" --shards 2 --replicas $(REPLICAS) --protocol $(PROTOCOL) --base-port $(BASE_PORT)
$(VENV)/bin/kvstore cluster up "$$dir" --detach
endef

bench: $(STAMP) ## throughput and latency of a fresh cluster
	@$(with_cluster)
	$(VENV)/bin/kvstore bench "$$dir"

compare: $(STAMP) ## throughput and latency of PROTOCOLS (all, or a,b) side by side, a fresh cluster each
	@$(VENV)/bin/kvstore bench --protocols $(PROTOCOLS)

conformance: $(STAMP) ## every protocol in processes over TCP, with kills (PYTEST_ARGS='-k skeen' for one)
	@$(PYTHON) -m pytest --full tests/conformance $(PYTEST_ARGS)

locust: $(STAMP) ## 20 s of locust against a fresh cluster
	@$(with_cluster)
	$(VENV)/bin/locust -f workloads/locustfile.py --headless --only-summary --users 32 --spawn-rate 16 \
	  --run-time 20s --host "http://127.0.0.1:$$(($(BASE_PORT) + 100))"

audit: java $(PREPARED) ## let Spark judge the run in RUN_DIR
	@$(PYTHON) -m spark_etl audit $(RUN_DIR)

install: $(STAMP) ## only create .venv and install

clean: ## remove .venv, caches and the directory of the demo
	@rm -rf $(VENV) build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-run spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The audit runs on Spark, which needs Java; said before anything is installed or started.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"
	remedy="Install a Java runtime, e.g. on Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless (or set JAVA_HOME to one)."
	if ! said=$$("$$java" -version 2>&1); then
	  echo "Java 17 or newer is needed for the audit, and '$$java' does not run. $$remedy" >&2
	  exit 1
	fi
	major=$$(sed -nE 's/.* version "([0-9]+).*/\1/p' <<< "$$said" | head -n 1)
	if [ "$${major:-0}" -lt 17 ]; then
	  echo "Java 17 or newer is needed for the audit; '$$java' is version $${major:-unknown}. $$remedy" >&2
	  exit 1
	fi

# An environment that still works is updated, any other is made anew.
$(STAMP): pyproject.toml constraints.txt
	@fits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
	start=$$SECONDS
	if ! fits $(PYTHON) || ! $(PYTHON) -c 'import pip' 2>/dev/null || [ ! -e $(STAMP) ]; then
	  found=""
	  for candidate in python3.11 python3.12 python3.13 python3; do
	    if fits "$$candidate"; then found=$$candidate; break; fi
	  done
	  if [ -z "$$found" ]; then
	    echo "Python 3.11 or newer is needed and none was found. Install it, e.g. on Debian or Ubuntu: sudo apt-get install python3 python3-venv" >&2
	    exit 1
	  fi
	  echo "==> Creating $(VENV) with $$("$$found" --version)"
	  if ! "$$found" -m venv --clear $(VENV); then
	    echo "Could not create $(VENV). On Debian or Ubuntu: sudo apt-get install python3-venv" >&2
	    exit 1
	  fi
	fi
	echo "==> Installing the project and what it needs (Spark is large: a minute or more, the first time)"
	if ! $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'; then
	  echo "The installation failed, see above; when that is mended, run the same command again." >&2
	  exit 1
	fi
	touch $(STAMP)
	echo "==> Installed in $$((SECONDS - start)) s"

# Audits do without, only slower.
$(PREPARED): $(STAMP)
	@echo "==> Preparing audits: keeping Spark's classes as Java has loaded them (once)"
	$(PYTHON) -m spark_etl prepare --quiet || true
	touch $(PREPARED)
