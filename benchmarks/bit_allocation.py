"""Bits by layer against uniform bits, at equal stored bytes: paired KL of each document, with an interval.

    python -m benchmarks.bit_allocation MODEL [--uniform FORMAT]... [--ladder TEMPLATE] [--widths 2,3,4,5,6,8]
        [--by layer|head] [--documents 24] [--sensitivities FILE] [--out FILE.json] [--markdown FILE.md]

For each uniform format, an allocation of the ladder is made whose real ledger stores no more bytes. Isolated KL is
taken on two pilot documents; both formats are then scored on other documents of 256 + 128 tokens. Nothing is asserted:
a row where the allocation loses more is printed like any other.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.orderings.scoring import Interval, interval
from kvassay.cli.progress_display import ProgressDisplay
from kvassay.core.contract import parse_contract
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry
from kvassay.core.ledger import predict_ledger
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import SearchError
from kvassay.find.candidates import Candidate, allocation_within
from kvassay.find.ladder import parse_ladder
from kvassay.find.pilot import PilotFigures, PilotSize, SearchPilot, draw_pilot_text
from kvassay.find.sensitivity import (
    Sensitivities,
    Wanted,
    choices,
    measure_sensitivities,
    read_sensitivities,
    write_sensitivities,
)
from kvassay.workloads.corpus import load_corpus

JUDGED = {"prompt_tokens": 256, "scored_tokens": 128}
OUTCOMES = {1: "allocated loses less", 0: "not resolved", -1: "uniform loses less"}
TOKENS = sum(JUDGED.values())
CONTRACT = """
schema = "kvassay.contract/1"
name = "bit allocation"
[candidates]
order = ["exl3-4"]
[fidelity.kl_mean]
max = 1.0
"""
"""Of which the search's code takes corpus, seed and reference; nothing is judged against it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--uniform", action="append")
    parser.add_argument("--ladder", default="kv=exl3-{bits}")
    parser.add_argument("--widths", default="2,3,4,5,6,8")
    parser.add_argument("--by", choices=("layer", "head"), default="layer")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--sensitivities", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    result = compare(given)
    text = markdown(result)
    print(text)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    if given.markdown:
        given.markdown.write_text(text)


def compare(given: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    contract = parse_contract(CONTRACT)
    loaded = load_model(given.model, announce=print)
    geometry = loaded.geometry
    ladder = parse_ladder(given.ladder, [int(width) for width in given.widths.split(",")])
    scorer = DecodeScorer(loaded.model, geometry)
    known = _read(given.sensitivities)
    looked_at = frozenset(document.id for document in known.text.documents) if known is not None else frozenset()
    text = draw_pilot_text(contract, loaded.tokenizer, PilotSize(given.documents, **JUDGED), looked_at)
    taken = frozenset(document.id for document in text.documents)
    # The same documents as those of the file, so that predicted and measured KL differ by additivity alone.
    others = frozenset(document.id for document in load_corpus(text.corpus).documents) - looked_at
    pilot_text = draw_pilot_text(contract, loaded.tokenizer, PilotSize(), others if looked_at else taken)
    pilot = SearchPilot(scorer, pilot_text, contract)
    wanted = Wanted(given.model, loaded.hashes, geometry, ladder, given.by, taken)
    with ProgressDisplay() as progress:
        if known is not None:
            isolated_kl = read_sensitivities(given.sensitivities, pilot, wanted)
        else:
            isolated_kl = measure_sensitivities(pilot, wanted, progress)
            if given.sensitivities is not None:
                write_sensitivities(given.sensitivities, isolated_kl)
        assert {d.id for d in isolated_kl.text.documents} == {d.id for d in pilot_text.documents}
        isolated = choices(isolated_kl.mean_kl(), ladder, geometry, given.by, TOKENS)
        pairs: dict[str, Candidate] = {}
        for name in given.uniform or ["exl3-5", "exl3-4", "exl3-3"]:
            budget = predict_ledger(geometry, parse_format(name), TOKENS).persistent_nbytes
            found = allocation_within(geometry, TOKENS, ladder, given.by, isolated, budget)
            if found is None:
                raise SearchError(f"the ladder's cheapest widths store more than {name}; give narrower --widths")
            pairs[name] = found
        formats = {name: parse_format(name) for name in pairs}
        formats |= {each.name: each.kv_format for each in pairs.values()}
        progress.stage("pilot documents", len(formats) * len(pilot.text.documents))
        on_pilot = pilot.figures(formats, progress)
        judged = SearchPilot(scorer, text, contract)
        progress.stage("judged documents", len(formats) * given.documents)
        on_others = judged.figures(formats, progress)
    return {
        "model": given.model,
        "weights_sha256": loaded.hashes.weights,
        "ladder": ladder.template,
        "widths": list(ladder.widths),
        "by": given.by,
        "pilot": pilot.text.to_json(),
        "judged": text.to_json(),
        "isolated_passes": isolated_kl.passes,
        "isolated_seconds": isolated_kl.seconds,
        "seconds": round(time.monotonic() - began),
        "threads": torch.get_num_threads(),
        "rows": [_row(name, pairs[name], on_pilot, on_others, geometry) for name in pairs],
    }


def _read(path: Path | None) -> Sensitivities | None:
    return None if path is None or not path.exists() else Sensitivities.model_validate_json(path.read_bytes())


def _row(
    uniform: str,
    allocated: Candidate,
    on_pilot: dict[str, PilotFigures],
    on_others: dict[str, PilotFigures],
    geometry: CacheGeometry,
) -> dict[str, Any]:
    one, other = (np.array(on_others[name].kl_nats) for name in (uniform, allocated.name))
    ledger = predict_ledger(geometry, parse_format(uniform), TOKENS)
    return {
        "uniform": uniform,
        "allocated": allocated.name,
        "uniform_nbytes": ledger.persistent_nbytes,
        "allocated_nbytes": allocated.ledger.persistent_nbytes,
        "uniform_bits": 16 * ledger.ratio_to_float16,
        "allocated_bits": allocated.stored_bits,
        "uniform_kl": _bounds(interval(one)),
        "allocated_kl": _bounds(interval(other)),
        "difference": _bounds(interval(one - other)),
        "outcome": OUTCOMES[interval(one - other).sign],
        "documents_where_allocated_loses_less": int((other < one).sum()),
        "documents": len(one),
        "predicted_kl": allocated.predicted_kl,
        "pilot_kl": on_pilot[allocated.name].kl_mean,
        "pilot_uniform_kl": on_pilot[uniform].kl_mean,
        "by_document": {"uniform": one.tolist(), "allocated": other.tolist()},
    }


def _bounds(found: Interval) -> dict[str, float]:
    return found._asdict()


def markdown(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['model']}`, ladder `{result['ladder']}` at {', '.join(map(str, result['widths']))} bit, by "
        f"{result['by']}; {result['judged']['prompt_tokens']} + "
        f"{result['judged']['scored_tokens']} tokens of {result['judged']['corpus']}, isolated KL on "
        f"{len(result['pilot']['documents'])} others ({result['isolated_passes']} passes).",
        "",
        "| uniform | bits | bytes: uniform, allocated | KL uniform | KL allocated | difference (90% interval) | n "
        "| outcome |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| `{row['uniform']}` | {row['uniform_bits']:.3f} "
            f"| {row['uniform_nbytes']:,}, {row['allocated_nbytes']:,} "
            f"| {row['uniform_kl']['estimate']:.4g} | {row['allocated_kl']['estimate']:.4g} "
            f"| {_interval(row['difference'])} | {row['documents']} | {row['outcome']} |"
        )
    lines += ["", "| allocation | sum of isolated KL | KL on the same documents | ratio |", "|---|---|---|---|"]
    for row in result["rows"]:
        ratio = row["pilot_kl"] / row["predicted_kl"]
        lines.append(f"| `{row['allocated']}` | {row['predicted_kl']:.4g} | {row['pilot_kl']:.4g} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def _interval(bounds: dict[str, float]) -> str:
    return f"{bounds['estimate']:.4g} [{bounds['lower']:.4g}, {bounds['upper']:.4g}]"


if __name__ == "__main__":
    main()
