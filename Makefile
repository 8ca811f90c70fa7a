# The two commands that do all the set-up: `make demo` and `make test`. Each is a few plain commands,
# shown as they run.

CARGO ?= cargo
MODEL := models/all-minilm-l6-v2/model.safetensors
# Where the demonstration keeps its optimizer state: two directories that stand for two disks, some
# 200 MB, removed at the end. DEMO_DIR=/mnt/disk puts them elsewhere.
SCRATCH := $(abspath $(or $(DEMO_DIR),$(or $(TMPDIR),/var/tmp)))/tensortier-demo

.PHONY: demo test fixture

## The main job on a real model: 5 AdamW steps with under a third of the state in memory, every bit
## checked. rmdir at the end fails if the run left anything behind.
demo: $(MODEL)
	mkdir -p "$(SCRATCH)/path-a" "$(SCRATCH)/path-b"
	$(CARGO) run --release -p tensortier-cli -- adam --weights $(MODEL) --path "$(SCRATCH)/path-a" --path "$(SCRATCH)/path-b" --host-memory 48MiB --steps 5 --verify
	rmdir "$(SCRATCH)/path-a" "$(SCRATCH)/path-b" "$(SCRATCH)"

$(MODEL):
	scripts/fetch-model

## All tests of all languages there are.
test:
	$(CARGO) test --workspace
	scripts/test-python

## Rewrites the small tensor file of the tests.
fixture:
	scripts/make-fixture.py
