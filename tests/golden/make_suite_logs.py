"""Real logs of lm-eval over a tiny random model: two local tasks, the reference and KIVI-4.

    python -m tests.golden.make_suite_logs FOLDER

It needs the extra `lm-eval`. `inspect_sums.json` beside them is of Inspect 0.3.285: three sums answered 1, 2 and 9 by
its mock model, scored by match and includes, without its events.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

WORDS = ("river", "stone", "mill", "bridge", "grain", "clerk", "book", "hill", "sea", "sack")
FORMATS = {"f32": "f32", "kivi-4": "kivi-4;recent=32"}
TASKS = ("words_choice", "words_say")
_COMMON = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "{{{{text}}}}\\nThe word is"
"""
_CHOICE = """output_type: multiple_choice
doc_to_target: label
doc_to_choice: choices
metric_list:
  - metric: acc
"""
_SAY = """output_type: generate_until
doc_to_target: "{{choices[0]}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 6
metric_list:
  - metric: exact_match
"""


def write_tasks(folder: Path, items: int = 8, words: int = 24) -> Path:
    """Two tasks as YAML over one local JSON data set; returns their folder."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    rows = []
    for index in range(items):
        text = [rng.choice(WORDS) for _ in range(words)]
        rows.append({"text": " ".join(text), "choices": [text[0], text[1] + "s"], "label": index % 2})
    data = folder / "words.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    for task, text in zip(TASKS, (_CHOICE, _SAY), strict=True):
        (folder / f"{task}.yaml").write_text(_COMMON.format(task=task, data=data) + text)
    return folder


def evaluate(model: Path, kv_format: str, tasks: Path, **options: Any) -> dict[str, Any]:
    """lm-eval's result, with its samples, of both tasks."""
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    import kvassay.engines.lm_eval.model  # noqa: F401

    found = simple_evaluate(
        model="kvassay",
        model_args={"pretrained": str(model), "kv_format": kv_format, **options},
        tasks=list(TASKS),
        # Without the tasks that come with lm-eval, which take a minute to list.
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        batch_size=2,
        log_samples=True,
        bootstrap_iters=0,
    )
    assert found is not None
    return found


def save(result: dict[str, Any], folder: Path) -> None:
    """The samples as lm-eval itself writes them."""
    from lm_eval.loggers import EvaluationTracker  # pyright: ignore[reportMissingImports]

    tracker = EvaluationTracker(output_path=str(folder))
    tracker.general_config_tracker.model_name_sanitized = "tiny"
    tracker.date_id = "2026-01-31T12-00-00.000000"
    for task, samples in result["samples"].items():
        tracker.save_results_samples(task, samples)


def main(folder: Path) -> None:
    from tests.engines.model_folders import llama_config, write_folder

    tasks = write_tasks(folder / "tasks")
    config = llama_config(hidden_size=64, head_dim=64, max_position_embeddings=512)
    model = write_folder(folder / "tiny", config)
    for name, kv_format in FORMATS.items():
        save(evaluate(model, kv_format, tasks), folder / name)
        for task in TASKS:
            (log,) = (folder / name).rglob(f"samples_{task}_*.jsonl")
            log.rename(Path(__file__).parent / "suite_logs" / f"samples_{task}_{name}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
