"""What `kvassay capacity` prints: the answers, what would not fit, and what the run held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvassay.cli.output import nbytes_text, print_table
from kvassay.core.capacity import Budget, Capacity, Limit, step_workspace_nbytes
from kvassay.core.geometry import CacheGeometry
from kvassay.core.ledger import predict_ledger

if TYPE_CHECKING:
    from kvassay.measures.capacity_run import CapacityRun


def print_answers(
    model: str,
    limits: Budget,
    weights_given: bool,
    geometry: CacheGeometry,
    context: int,
    found: list[Capacity],
    plain: Capacity,
) -> None:
    print(f"budget {limits.nbytes:,} B ({nbytes_text(limits.nbytes)}) holds: {limits.holds.value}")
    if limits.weights_nbytes is None:
        print("weights: size not known; give it with --weights SIZE")
    else:
        source = "as given" if weights_given else "as its files hold them; --weights SIZE where memory holds others"
        print(f"weights {limits.weights_nbytes:,} B ({nbytes_text(limits.weights_nbytes)}), {source}")
    print(f"{model}: rows of {context:,} tokens\n")
    rows = [
        [
            one.kv_format.name,
            f"{16 * one.sequence.ratio_to_float16:.4g}",
            f"{one.sequence.persistent_nbytes:,}",
            f"{one.batch.batch:,}",
            _times(one.batch.batch, plain.batch.batch),
            one.batch.limit.value,
            f"{one.batch.used_nbytes:,}",
            nbytes_text(_workspace_nbytes(geometry, one, context)),
            f"{one.context.tokens:,}",
            one.context.limit.value,
        ]
        for one in found
    ]
    header = [
        "format",
        "bits",
        "B a row",
        "batch",
        "x f16",
        "limit",
        "used B",
        "workspace",
        "context of 1 row",
        "limit",
    ]
    print_table(header, rows, right=(1, 2, 3, 4, 6, 7, 8))
    print(f"\nbits and B a row: at {context:,} tokens; used B: the peak on the way there, which has to fit")
    print(f"f16 for comparison: batch {plain.batch.batch:,}, longest row {plain.context.tokens:,} tokens")
    for one in found:
        name, batch = one.kv_format.name, one.batch
        over = batch.next_nbytes - limits.nbytes
        where = f"at {batch.fullest_tokens:,} tokens takes"
        print(f"{name}: batch {batch.next_batch:,} {where} {batch.next_nbytes:,} B: {over:,} B too many")
        if one.context.limit is Limit.MODEL_CONTEXT:
            print(
                f"{name}: the model's context of {geometry.max_context:,} tokens ends before the budget, which would "
                f"hold one row of {one.context.tokens_by_bytes:,}"
            )


def print_runs(found: list[Capacity], runs: Mapping[int, CapacityRun]) -> None:
    if not runs:
        return
    print("\nrun: real caches filled with synthetic keys and values, each in a fresh process")
    rows = []
    for index, run in runs.items():
        name = found[index].kv_format.name
        for result in (run.at_batch, run.beyond):
            if result is not None:
                rows.append(
                    [
                        name,
                        f"{result.batch:,}",
                        f"{result.tokens:,}",
                        f"{result.persistent_nbytes:,}",
                        f"{result.persistent_nbytes - result.predicted_nbytes:+,}",
                        f"{result.used_nbytes:,}",
                        "fits" if result.fits else "does not fit",
                        "-" if result.transient_nbytes is None else nbytes_text(result.transient_nbytes),
                        nbytes_text(result.resident_after_nbytes - result.resident_before_nbytes),
                        nbytes_text(result.resident_high_water_nbytes - result.resident_before_nbytes),
                        f"{result.seconds:.1f}",
                    ]
                )
    print_table(
        [
            "format",
            "batch",
            "tokens",
            "allocated B",
            "- formula",
            "used B",
            "budget",
            "step peak",
            "resident +",
            "high water +",
            "s",
        ],
        rows,
        right=(1, 2, 3, 4, 5, 7, 8, 9, 10),
    )
    for index, run in runs.items():
        what = "the run confirms the formula" if run.confirmed else "THE RUN CONTRADICTS THE FORMULA"
        print(f"{found[index].kv_format.name}: {what}")


def capacity_document(
    model: str,
    limits: Budget,
    weights_given: bool,
    context: int,
    batch_step: int,
    found: list[Capacity],
    plain: Capacity,
    runs: Mapping[int, CapacityRun],
) -> dict[str, Any]:
    return {
        "model": model,
        "budget_nbytes": limits.nbytes,
        "budget_holds": limits.holds.value,
        "weights_nbytes": limits.weights_nbytes,
        "weights_source": None if limits.weights_nbytes is None else "given" if weights_given else "files",
        "context": context,
        "batch_step": batch_step,
        "f16": {"batch": plain.batch.batch, "context_of_one_row": plain.context.tokens},
        "formats": [_row(one, plain, context, runs.get(index)) for index, one in enumerate(found)],
    }


def _row(one: Capacity, plain: Capacity, context: int, run: CapacityRun | None) -> dict[str, Any]:
    return {
        "format": one.kv_format.name,
        "format_digest": one.kv_format.digest,
        "stored_bits": 16 * one.sequence.ratio_to_float16,
        "ratio_to_float16": one.sequence.ratio_to_float16,
        "row_nbytes": one.sequence.persistent_nbytes,
        "row_transient_nbytes": step_workspace_nbytes(one.sequence),
        "largest_batch": one.batch.batch,
        "batch_limit": one.batch.limit.value,
        "batch_ratio_to_f16": one.batch.batch / plain.batch.batch if plain.batch.batch else None,
        "used_nbytes": one.batch.used_nbytes,
        "used_at_tokens": one.batch.fullest_tokens,
        "next_batch": one.batch.next_batch,
        "next_nbytes": one.batch.next_nbytes,
        "largest_context_of_one_row": one.context.tokens,
        "context_limit": one.context.limit.value,
        "context_by_bytes": one.context.tokens_by_bytes,
        "run": None
        if run is None
        else {
            "confirmed": run.confirmed,
            "at_batch": None if run.at_batch is None else run.at_batch.model_dump(mode="json"),
            "beyond": run.beyond.model_dump(mode="json"),
        },
    }


def _workspace_nbytes(geometry: CacheGeometry, one: Capacity, context: int) -> int:
    """Upper bound of the transient bytes of a decode step at the answer."""
    if not one.batch.batch:
        return 0
    return step_workspace_nbytes(predict_ledger(geometry, one.kv_format, context, one.batch.batch))


def _times(batch: int, plain: int) -> str:
    return f"{batch / plain:.2f}" if plain else "-"
