"""`kvassay judge-logs`: the paired test on logs of lm-eval or Inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.errors import UsageError, printable


def judge_logs(
    reference: Path,
    candidate: Path,
    /,
    *,
    task: str,
    margin: float,
    metric: str | None = None,
    filter: str | None = None,
    canary: Path | None = None,
    again: Path | None = None,
    alpha: float = 0.05,
    ref_floor: float = 0.5,
    test_sha256: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Judge one task of another suite, paired item by item. Exit code 0 met, 1 breached, 3 inconclusive, 2 no answer.

    Without --canary and --again nothing is met; without --test-sha256 the outcome is marked post hoc.

    Parameters
    ----------
    reference
        Log of the run over the full-precision cache: samples_TASK_TIME.jsonl of lm-eval --log_samples, the folder that
        holds it, or a .json log of Inspect.
    candidate
        Log of the run over the quantized cache, on the same items.
    task
        Name of the task.
    margin
        Largest allowed loss of accuracy as a share (0.01 is one point).
    metric
        Metric of lm-eval or scorer of Inspect, where the log has more than one. Each item must be right or wrong.
    filter
        Filter of lm-eval, where the log has more than one.
    canary
        Log of a run over a known-bad format, which must be breached.
    again
        Log of the reference run once more, which must not be.
    alpha
        One-sided error rate of each bound.
    ref_floor
        Accuracy below which the reference cannot show a loss.
    test_sha256
        Hash of task, metric, margin, alpha and floor, as this command prints it; shows that they were fixed before.
    json
        Print one JSON document.
    """
    from pydantic import ValidationError

    from kvassay.pack.judge_logs import LogRuns, LogTest, judge_logs
    from kvassay.pack.manifest import first_fault
    from kvassay.pack.suite_logs import Choice, read_suite_log

    choice = Choice(task, metric, filter)
    logs = [None if path is None else read_suite_log(path, choice) for path in (reference, candidate, canary, again)]
    assert logs[0] is not None
    assert logs[1] is not None
    try:
        test = LogTest(task=task, metric=logs[0].metric, margin=margin, alpha=alpha, ref_floor=ref_floor)
    except ValidationError as error:
        raise UsageError(f"{first_fault(error)} (see kvassay judge-logs --help)") from error
    verdict = judge_logs(LogRuns(logs[0], logs[1], logs[2], logs[3]), test, test_sha256)
    if json:
        files = {
            name: None if log is None else {"path": str(log.path), "sha256": log.sha256, "items": len(log.items)}
            for name, log in zip(LogRuns._fields, logs, strict=True)
        }
        described = {"suite": logs[0].suite, "test": test.model_dump(mode="json"), "test_sha256": test.sha256}
        print_json({**described, "logs": files, **verdict.to_json()})
        return verdict.exit_code
    for control in verdict.controls:
        state = "not run" if control.passed is None else "passed" if control.passed else "FAILED"
        print(f"control {control.name}: {state}: {printable(control.reason)}")
    if verdict.copies:
        print(f"left out: {verdict.copies} items that ask what another one asks")
    of = printable(f"{test.task}, {test.metric}")
    print(f"test {test.sha256}: {of}, margin {test.margin:g}, alpha {test.alpha:g}, floor {test.ref_floor:g}")
    outcome = verdict.marked_outcome.replace("_", " ").upper()
    print(f"{outcome} (exit code {int(verdict.exit_code)}): {printable(verdict.reason)}")
    return verdict.exit_code
