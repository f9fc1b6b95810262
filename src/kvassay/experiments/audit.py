"""Audit of an attention-error folder: hash everything, recompute everything, regenerate the inputs. No torch.

The recomputation shares no arithmetic with the run: that went through the product's torch codecs, this is
NumPy written from the formulas. Codes and scales must agree bit for bit, figures to `TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kvassay.errors import PackError
from kvassay.experiments.attention_error_manifest import (
    ARRAYS_FILE,
    PLAN_FILE,
    SUMMARY_FILE,
    AttentionErrorManifest,
    plan_json,
)
from kvassay.experiments.attention_error_plan import CELLS, NORMAL, SEEDS, SIDES, TABLES, Cell
from kvassay.experiments.attention_error_provenance import installed_hash
from kvassay.experiments.attention_error_summary import render_summary
from kvassay.experiments.attention_error_tables import Value, to_csv
from kvassay.experiments.audit_folder import Arrays, describe_arrays, load_arrays, load_tables
from kvassay.experiments.audit_recompute import (
    expected_side,
    names_of,
    recompute_tables,
    saved_inputs,
    saved_side,
)
from kvassay.experiments.audit_reference import F64, Inputs, attention, inputs_from_seed, with_outlier
from kvassay.pack.checks import Check, Verification
from kvassay.pack.files import read_manifest, verify_files
from kvassay.pack.folder import EXPERIMENT_SCHEMA
from kvassay.pack.plain_files import list_files, read_plain
from kvassay.pack.strict_json import parse_json

TOLERANCE = 1e-12
"""Largest difference of a figure, relative to it where it is above one. Two BLAS libraries sum in
different orders."""
_MAX_TEXT_NBYTES = 1 << 20
_RAN = ("experiments/attention_error.py", "experiments/attention_error_measure.py", "formats/integer.py")


def audit_attention_error(folder: Path, expect_root: str | None = None) -> Verification:
    """Every check of one folder; `passed` only if all do.

    Names, in order: `manifest`, those of `verify_files`, `source-files`, `plan`, `arrays`, `array-hashes`,
    `inputs-from-seeds`, `codes`, `half-step`, `outputs`, `table: T` and `csv: T` for rows, variants, bytes
    and exercise, and `summary`. Raises PackError when `folder` is no folder at all.
    """
    list_files(folder)
    try:
        manifest = read_manifest(folder, EXPERIMENT_SCHEMA, AttentionErrorManifest)
    except PackError as error:
        return Verification(EXPERIMENT_SCHEMA, "", (Check("manifest", False, str(error)),))
    assert isinstance(manifest, AttentionErrorManifest)
    checks = [
        Check("manifest", True, f"written by kvassay {manifest.kvassay_version} at commit {manifest.git_commit}"),
        *verify_files(folder, manifest, expect_root),
        _sources(manifest),
        _attempt("plan", lambda: _plan(folder)),
    ]
    try:
        arrays = load_arrays(folder)
    except PackError as error:
        checks.append(Check("arrays", False, str(error)))
    else:
        # A tampered scale may be zero or huge; the checks compare what comes out; no warnings.
        with np.errstate(all="ignore"):
            checks += _array_checks(folder, arrays)
            checks += _table_checks(folder, arrays, manifest)
    return Verification(EXPERIMENT_SCHEMA, manifest.computed_root(), tuple(checks))


def _sources(manifest: AttentionErrorManifest) -> Check:
    missing = [name for name in _RAN if f"kvassay/{name}" not in manifest.sources]
    if missing:
        return Check("source-files", False, f"the manifest binds no hash of {missing[0]}, which made the rows")
    same = sum(installed_hash(name) == digest for name, digest in manifest.sources.items())
    count = len(manifest.sources)
    return Check("source-files", True, f"{count} source files are bound by hash; {same} equal those installed here")


def _plan(folder: Path) -> str | None:
    found = parse_json(read_plain(folder, PLAN_FILE, _MAX_TEXT_NBYTES), PLAN_FILE)
    expected = plan_json()
    if found == expected:
        return None
    odd = [key for key in expected if not isinstance(found, dict) or found.get(key) != expected[key]]
    return f"{PLAN_FILE} differs from the plan of the experiment{f' in {odd[0]!r}' if odd else ''}"


def _array_checks(folder: Path, arrays: dict[Cell, Arrays]) -> Iterator[Check]:
    count = sum(len(tensors) for tensors in arrays.values())
    yield Check("arrays", True, f"{count} arrays in {len(arrays)} cells have the planned names, types and shapes")
    yield _attempt("array-hashes", lambda: _array_hashes(folder, arrays))
    yield _attempt("inputs-from-seeds", lambda: _inputs(arrays))
    yield _attempt("codes", lambda: _codes(arrays))
    yield _attempt("half-step", lambda: _half_step(arrays))
    yield _attempt("outputs", lambda: _outputs(arrays))


def _array_hashes(folder: Path, arrays: dict[Cell, Arrays]) -> str | None:
    listed = parse_json(read_plain(folder, ARRAYS_FILE, _MAX_TEXT_NBYTES), ARRAYS_FILE)
    found = describe_arrays(arrays)
    if not isinstance(listed, dict) or set(listed) != set(found):
        return f"{ARRAYS_FILE} does not list the {len(found)} arrays of the folder"
    odd = [name for name, entry in found.items() if listed[name] != entry]
    return f"{odd[0]} is not what {ARRAYS_FILE} says of it" if odd else None


def _inputs(arrays: dict[Cell, Arrays]) -> str | None:
    for seed in SEEDS:
        for n_tokens, drawn in inputs_from_seed(seed):
            for cell in (c for c in CELLS if (c.seed, c.n_tokens) == (seed, n_tokens)):
                expected = drawn if cell.input == NORMAL else with_outlier(drawn)
                for name in Inputs._fields:
                    difference = _difference(arrays[cell][name], getattr(expected, name))
                    if not difference <= TOLERANCE:
                        return f"{cell.name}/{name} differs by {difference:.3g} from the draw of its seed"
    return None


def _codes(arrays: dict[Cell, Arrays]) -> str | None:
    for cell, tensors in arrays.items():
        normal = arrays[cell._replace(input=NORMAL)]
        for name in names_of(cell):
            for side in SIDES:
                expected = expected_side(name, side, tensors[side], normal[side]).side
                for part, saved, wanted in zip(
                    expected._fields, saved_side(tensors, name, side), expected, strict=True
                ):
                    if saved.shape != wanted.shape or not np.array_equal(saved, wanted):
                        return f"{cell.name}/{name}.{side}.{part} is not what the formula gives for its {side}"
    return None


def _half_step(arrays: dict[Cell, Arrays]) -> str | None:
    """R75: a value inside the range is at most half a stored step away."""
    for cell, tensors in arrays.items():
        for name in names_of(cell):
            for side in SIDES:
                stored = saved_side(tensors, name, side)
                exact = tensors[side][len(stored.exact) :]
                scales = stored.scales.astype(np.float64)
                steps = np.abs(stored.decoded[len(stored.exact) :] - exact) / scales
                inside = np.abs(np.rint(exact / scales)) <= 127
                largest = steps[inside].max(initial=0)
                # The room is for x / scale and its difference, which are rounded to float64.
                if not largest <= 0.5 + TOLERANCE:
                    return f"{cell.name}/{name}.{side}: an error of {largest:.6g} steps, above a half"
    return None


def _outputs(arrays: dict[Cell, Arrays]) -> str | None:
    for cell, tensors in arrays.items():
        queries, keys, values = saved_inputs(tensors)
        pairs: dict[str, tuple[F64, F64]] = {"reference": (keys, values)}
        for name in names_of(cell):
            pairs[name] = (
                saved_side(tensors, name, "keys").decoded,
                saved_side(tensors, name, "values").decoded,
            )
        for name, pair in pairs.items():
            difference = _difference(tensors[f"{name}.output"], attention(queries, *pair).output)
            if not difference <= TOLERANCE:
                return f"{cell.name}/{name}.output differs by {difference:.3g} from attention on its arrays"
    return None


def _table_checks(folder: Path, arrays: dict[Cell, Arrays], manifest: AttentionErrorManifest) -> Iterator[Check]:
    try:
        saved = load_tables(folder)
        recomputed = recompute_tables(arrays)
    except (PackError, ValueError) as error:
        yield Check("tables", False, str(error))
        return
    for name, columns in TABLES.items():
        rows: list[dict[str, Value]] = getattr(saved, name)
        yield _attempt(f"table: {name}", lambda name=name, rows=rows: _table(rows, getattr(recomputed, name)))
        text = to_csv(rows, columns)
        yield _attempt(f"csv: {name}", lambda name=name, text=text: _same_text(folder, f"{name}.csv", text))
    yield _attempt("summary", lambda: _same_text(folder, SUMMARY_FILE, render_summary(saved, manifest.environment)))


def _table(saved: list[dict[str, Value]], recomputed: list[dict[str, Value]]) -> str | None:
    if len(saved) != len(recomputed):
        return f"{len(saved)} rows, {len(recomputed)} are planned"
    for index, (found, expected) in enumerate(zip(saved, recomputed, strict=True)):
        for column, value in expected.items():
            if not _same_value(found[column], value):
                return f"row {index}: {column} is {found[column]!r}, recomputed {value!r}"
    return None


def _same_value(found: Value, expected: Value) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
    return type(found) is type(expected) and found == expected


def _same_text(folder: Path, name: str, expected: str) -> str | None:
    if read_plain(folder, name, _MAX_TEXT_NBYTES) == expected.encode():
        return None
    return f"{name} does not say what the tables say"


def _difference(found: F64, expected: F64) -> float:
    """Largest difference, relative to values above one."""
    return float((np.abs(found - expected) / np.maximum(1.0, np.abs(expected))).max())


def _attempt(name: str, check: Callable[[], str | None]) -> Check:
    """Run one check, which returns None or its complaint. Unreadable or impossible content fails it too."""
    try:
        complaint = check()
    except (PackError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError) as error:
        complaint = f"cannot be checked: {' '.join(str(error).split())[:200]}"
    return Check(name, complaint is None, complaint or _PASSED.get(name, "recomputed; equal"))


_PASSED = {
    "plan": f"{PLAN_FILE} states the plan of the experiment",
    "array-hashes": f"every array has the hash that {ARRAYS_FILE} lists",
    "inputs-from-seeds": "queries, keys and values come again from the seeds",
    "codes": "all codes and scales come again from keys and values, bit for bit",
    "half-step": "no value inside a range is further than half a step from its decoded value",
    "outputs": f"attention outputs come again from the stored arrays to {TOLERANCE:g}",
    "summary": f"{SUMMARY_FILE} says what the tables say",
}
