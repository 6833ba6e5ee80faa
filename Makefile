# Every target makes the environment it needs first (infra/setup.py); a second call costs well under a second.
BIN := $(or $(LORA_RL_VENV),.venv)/bin
SETUP := @python3 infra/setup.py

export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test lint docs bench

demo:  # trains a small real model for a few iterations and prints what it learned
	$(SETUP)
	$(BIN)/lora-rl run examples/quickstart.yaml --run-name demo --store outputs/demo-store
	$(BIN)/lora-rl status demo --store outputs/demo-store

test:  # every test; ARGS="-k name" narrows
	$(SETUP)
	$(BIN)/pytest $(ARGS)

lint:  # style and types
	$(SETUP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs:  # writes the generated pages of docs/
	$(SETUP)
	$(BIN)/python -c "from lora_rl.tracking import metrics_page; print(metrics_page(), end='')" > docs/metrics.md

bench:  # measures on the CPU and appends to benchmarks/results/
	$(SETUP)
	@set -e; for name in orchestration publish cpu_lora_ops train_step; do $(BIN)/python -m benchmarks.$$name; done
