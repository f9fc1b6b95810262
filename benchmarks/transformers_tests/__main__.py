"""Run transformers' cache and generation tests plainly and with QuantizedCaches, and write what came of it.

    python -m benchmarks.transformers_tests --tests ~/transformers --record runs --markdown table.md

`--tests` is a checkout of transformers (its `tests/`, `utils/` and `conftest.py` are read), best of the version that is
installed. Exit status 1 if a test that passes with DynamicCache failed with a QuantizedCache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.transformers_tests import checkout
from benchmarks.transformers_tests.verdict import Run, Verdict, judge, read_tests, table

MODELS = ["llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt_oss"]
RUNS = [
    Run("exact-float32", "kv=f32", "float32", 0.0),
    Run("exact-float16", "kv=f16", "float16", 0.0),
    Run("exact-bfloat16", "kv=bf16", "bfloat16", 0.0),
    Run("int8", "kv=int8:token-head", "float32", 0.02),
    Run("int4", "kv=int4:token-head", "float32", 0.35),
    Run("int4-recent", "k=int4:channel4,v=int4:group16,recent=4,sinks=1", "float32", 0.35),
]
"""Models of the tests have 16 channels a head and prompts of about 7 tokens: blocks and windows must be as small."""
OTHER_FILES = [
    "tests/utils/test_cache_utils.py",
    "tests/generation/test_utils.py",
    "tests/generation/test_candidate_generator.py",
]
ROOT = Path(__file__).resolve().parents[2]


def run_tests(run: Run, tests: Path, record: Path, models: list[str]) -> float:
    """One pytest process; returns its seconds."""
    folder = record / run.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = [f"tests/models/{model}/test_modeling_{model}.py" for model in models]
    environment = os.environ | {
        "KVASSAY_RECORD": str(folder.resolve()),
        "KVASSAY_TESTS": str(tests.resolve()),
        "KVASSAY_FORMAT": run.kv_format,
        "KVASSAY_DTYPE": run.dtype,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    options = [
        "-p",
        "benchmarks.transformers_tests.plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "-W",
        "ignore",
        "--tb=short",
    ]
    start = time.monotonic()
    with (folder / "output.txt").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files, *OTHER_FILES],
            cwd=tests,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not read_tests(folder):
        raise SystemExit(f"no test ran; see {folder / 'output.txt'}")
    return time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers_tests", description=__doc__)
    parser.add_argument("--tests", type=Path, required=True, help="a checkout of transformers")
    parser.add_argument("--record", type=Path, required=True, help="folder for logs, logits and verdicts")
    parser.add_argument("--models", nargs="+", default=MODELS, help="folders of tests/models")
    parser.add_argument("--runs", nargs="+", choices=[run.name for run in RUNS], default=[run.name for run in RUNS])
    parser.add_argument("--keep", action="store_true", help="take runs that --record holds already")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    given = parser.parse_args()

    runs = [run for run in RUNS if run.name in given.runs]
    tests = given.record / "checkout"
    shutil.rmtree(tests, ignore_errors=True)
    renamed = checkout.needs_renaming(given.tests)
    checkout.copy_tests(given.tests, tests, given.models, renamed)
    print(f"{'renamed past_key_values to cache in' if renamed else 'copied'} {tests}", flush=True)

    plain = {run.plain: Run(run.plain, "", run.dtype, 0.0) for run in runs}
    for run in [*plain.values(), *runs]:
        if given.keep and read_tests(given.record / run.name):
            continue
        print(f"{run.name}: {run_tests(run, tests, given.record, given.models):.0f} s", flush=True)

    before = {name: read_tests(given.record / name) for name in plain}
    after = {run.name: read_tests(given.record / run.name) for run in runs}
    outcomes = {}
    for test in sorted({test for lines in before.values() for test in lines}):
        cells = {}
        for run in runs:
            if test in before[run.plain]:
                seen = after[run.name].get(test)
                cells[run.name] = judge(test, run, before[run.plain][test], seen, given.record)
        outcomes[test] = cells
    left_out = json.loads((given.record / runs[0].name / "left_out.json").read_text())
    text = table(outcomes, runs, left_out)
    (given.markdown or given.record / "table.md").write_text(text)
    verdicts = {
        test: {name: [cell.verdict.value, cell.why, cell.error, cell.num_forwards] for name, cell in cells.items()}
        for test, cells in outcomes.items()
    }
    (given.record / "verdicts.json").write_text(json.dumps(verdicts, indent=1))
    failed = 0
    for run in runs:
        counts = Counter(cells[run.name].verdict for cells in outcomes.values() if run.name in cells)
        failed += counts[Verdict.FAILED]
        print(f"{run.kv_format}: " + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
