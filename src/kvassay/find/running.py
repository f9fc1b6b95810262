"""How to run the winner: in Python, on the command line, and in engines that have its format."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from kvassay.core.contract import Contract
from kvassay.core.engine_flags import ENGINES, engine_runs
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.find.records import EngineRow, Winner, conformance_row
from kvassay.pack.layout import CONTRACT_TOML


def how_to_run(
    kv_format: KVFormat, model: str, geometry: CacheGeometry, contract: Contract, out: Path, tokens: int
) -> Winner:
    """Everything that a reader needs to use the format."""
    name = kv_format.name
    engines = tuple(
        EngineRow(
            engine=run.engine,
            name=run.name,
            flags=run.flags,
            environment=run.environment,
            scales=run.scales,
            **conformance_row(run.conformance),
            note=run.note,
            measured=run.measured_here,
        )
        for run in engine_runs(kv_format, geometry)
    )
    return Winner(
        format=name,
        digest=kv_format.digest,
        kvassay_python=tuple(_python(kv_format, contract)),
        kvassay_commands=(
            f"kvassay bytes {quote(model)} --format {quote(name)} --context {tokens}",
            f"kvassay assess {quote(model)} --contract {quote(str(out / CONTRACT_TOML))} --out {quote(f'{out}-again')}",
        ),
        engines=engines,
        engines_text=_engines_text(engines),
    )


def _python(kv_format: KVFormat, contract: Contract) -> list[str]:
    name = kv_format.name
    if not any(spec.needs_calibration for spec in kv_format.specs):
        return [
            f'cache = kvassay.QuantizedCache.for_model(model, "{name}")',
            "output = model.generate(**inputs, cache=cache, max_new_tokens=100)",
        ]
    return [
        f'scales = kvassay.calibrate(model, "{name}", texts, policy="{contract.inference.calibration}", '
        "tokenizer=tokenizer)",
        f'cache = kvassay.QuantizedCache.for_model(model, "{name}", calibration=scales, on_clip="count")',
        "output = model.generate(**inputs, cache=cache, max_new_tokens=100)",
    ]


def _engines_text(engines: tuple[EngineRow, ...]) -> str:
    if not engines:
        return f"none of {', '.join(ENGINES)} has it"
    return f"{len(engines)} of {len(ENGINES)} engines known here have it or one like it, as marked; none was run here"
