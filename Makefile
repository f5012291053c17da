# Needs make and Python 3.11 or newer, nothing else. All that is installed goes into .venv.

BIN := .venv/bin
# Tests wait for processes and sockets a third of their time: one more than there are cores here.
JOBS ?= 3
ARGS ?=

# node comes with a locked package; the machine's own may be too old for pyright.
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Some machines say never to keep what was compiled. Here hundreds of processes would each compile
# all of it again; .venv, src and tests keep it, and make clean removes it.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that really runs (a pyenv shim may exist and refuse) and is new enough runs the
# tool; PYTHON=/path/to/python chooses another.
RUN = for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then exec "$$python" -m tools.$(1); fi; done; \
	echo "error: no Python 3.11 or newer found (PYTHON=/path/to/python names one)" >&2; exit 1

.PHONY: help serve wheel page site check test test-conformance test-deploy test-kubernetes test-page test-page-slow fuzz chaos rolling upgrade skew soak test-model fmt bench docs lock clean runtime dev model

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: runtime page ## set up what is needed and start the server (ARGS="--data-dir DIR" adds flags)
	@$(BIN)/python -m tools.help_build --background
	@exec $(BIN)/chatd serve $(ARGS)

# Quick if nothing has changed. Without Node the server serves the lite page.
page: runtime ## build the page, if its sources have changed and Node 20 is installed
	@$(BIN)/python tools/page_build.py

site: runtime ## build the documentation, which the server has at /help, if it has changed
	@$(BIN)/python -m tools.help_build --install

check: ## lint and types only, a minute or two
	@$(call RUN,checks check)

# A failed test runs once more, alone; one that passes then is reported as flaky. Decoys stand where a
# test must not look (tools/decoys.py).
test: ## every check and every test, as CI runs them (ARGS="-k name" goes to pytest)
	@$(call RUN,checks test --forks $(JOBS) -- $(ARGS))

test-page: ## every check and test of the page, in Chromium too
	@$(call RUN,checks page)

test-page-slow: ## the page in Chromium, each state in both themes and on both devices
	@$(call RUN,checks page --slow)

# A certified OpenID provider, for tests of the sign-in, the official clients of OpenAI's API and of the
# Agent Client Protocol, and the conformance scenarios of MCP. Without npm their tests are skipped.
tests/%/node_modules/.package-lock.json: tests/%/package-lock.json
	@if command -v npm >/dev/null; then cd tests/$* \
	&& npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json; \
	else echo "npm is not installed: the tests that need tests/$* are skipped."; fi

test-conformance: dev tests/mcp_conformance/node_modules/.package-lock.json ## the conformance scenarios of MCP, for the client and the server
	@exec $(BIN)/python -m pytest -m conformance -n $(JOBS) $(ARGS) tests/mcp tests/api

test-deploy: dev ## the Helm chart at an API server (needs Go), the image and Compose (needs Podman and root): minutes
	@$(BIN)/python -m tools.deploy_tests
	@exec $(BIN)/python -m tools.image_tests

test-model: model ## the wires of three vendors against a small real model (fetches 200 MB once)
	@exec $(BIN)/python -m pytest -m real_model -p no:randomly $(ARGS) tests/real

# KUBECONFIG names an API server without nodes, such as kube-apiserver alone with etcd: the tests run the
# pods' processes themselves, in a namespace and under a node of their own, which they remove.
test-kubernetes: dev ## all tests of backends over pods, on a real API server if there is KUBECONFIG=file
	@CHATD_TEST_PODS=all CHATD_TEST_KUBECONFIG="$(if $(KUBECONFIG),$(abspath $(KUBECONFIG)))" $(BIN)/python -m pytest \
	-k kubernetes -p no:randomly $(ARGS) tests/workspaces/test_backend_conformance.py
# The same as Sandboxes of agent-sandbox, on the strict fake only: its controller is part of it.
	@$(if $(KUBECONFIG),true,CHATD_TEST_PODS=all CHATD_TEST_SANDBOXES=all $(BIN)/python -m pytest \
	-k kubernetes -p no:randomly $(ARGS) tests/workspaces/test_backend_conformance.py)

fuzz: dev ## ask the API all that its description allows and forbids (ARGS="--cases 200 --seed 7")
	@exec $(BIN)/python -m tests.api.fuzz $(ARGS)

# The same bytes for the same commit: SOURCE_DATE_EPOCH is the time of the commit. CHATD_UI=skip leaves
# the page out.
wheel: dev ## build the wheel, with the page and the documentation, into dist/
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} CHATD_UI=$${CHATD_UI:-require} \
	$(BIN)/python -m hatchling build -t wheel

fmt: dev ## format the code and fix what can be fixed
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

chaos: dev ## a chat that kills its workers; then random kills for half an hour (ARGS="--seconds 60 --seed 7"; ARGS=--runners: of runners)
	@$(if $(findstring --runners,$(ARGS)),,$(BIN)/python -m tests.chaos.killer)
	@exec $(BIN)/python -m tests.chaos.soak $(ARGS)

rolling: dev ## restart three servers in turn under 50 chats (ARGS="--seconds 60 --chats 8")
	@exec $(BIN)/python -m tests.chaos.rolling $(ARGS)

# From the commit on that made the one schema file: a database of an earlier one is refused.
ONE_SCHEMA := src/chatd/store/migrations/0001_schema.sql
OLD ?= $(shell git log --diff-filter=A --format=%h -- $(ONE_SCHEMA) | tail -1)
upgrade: dev ## replace servers of an older version by this one under running chats (OLD=commit)
	@git cat-file -e $(OLD):$(ONE_SCHEMA) 2>/dev/null || { echo "make upgrade: $(OLD) has no $(ONE_SCHEMA)." \
	"This version refuses databases of commits before it; name a later one with OLD=commit." >&2; exit 2; }
	@dir=build/version-$(OLD); test -d $$dir || git worktree add -f --detach $$dir $(OLD) >/dev/null; \
	(cd $$dir && python3 tools/environment.py runtime) && exec $(BIN)/python -m tests.chaos.upgrade $(ARGS) $$dir

# From the first commit with runners on.
OLD_RUNNER ?= $(shell git log --diff-filter=A --format=%h -- src/chatd/workspaces/runner/runner_client.py | tail -1)
skew: dev ## runners of an older version beside this server, and the reverse (OLD_RUNNER=commit)
	@dir=build/version-$(OLD_RUNNER); test -d $$dir || git worktree add -f --detach $$dir $(OLD_RUNNER) >/dev/null; \
	(cd $$dir && python3 tools/environment.py runtime) && exec $(BIN)/python -m tests.chaos.skew $$dir

soak: dev ## 10,000 turns on one replica: it must not grow (ARGS="--turns 500")
	@exec $(BIN)/python -m tests.chaos.endurance $(ARGS)

bench: dev ## measure speed and print a table (ARGS="--quick --rows first,plans")
	@exec $(BIN)/chatd bench $(ARGS)

docs: dev
	@exec $(BIN)/python -m tools.docs

lock: ## resolve the dependencies again and rewrite requirements/ (needs uv)
	@UV="$${UV:-uv}" sh tools/lock.sh

clean: ## remove .venv and every cache; never touches data
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find src bench tests tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The quick way out is that there is nothing to do.
runtime dev model:
	@$(BIN)/python -m tools.environment --check $@ 2>/dev/null && exit 0; $(call RUN,environment $@)
