"""Formats that need the model's weights go the whole road: calibrated, measured, counted, packed, verified."""

from __future__ import annotations

import html

from kvassay.assess.run import run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.ledger import KEY_TRANSFORM_ASSUMPTION
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack

ARMS = ["k=int8:token-head,v=int8:token-head,rope=removed", "k=int8:channel/mean,v=int8:token-head,rope=removed"]


def test_formats_that_remove_rope_are_assessed(tiny_folder, contract_toml, tmp_path) -> None:
    candidates = ", ".join(f'"{arm}"' for arm in ARMS)
    toml = contract_toml.replace('["int8-token-head", "int8-tensor", "kivi-4,recent=8"]', f"[{candidates}]")
    assert toml != contract_toml
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "pack")
    content = read_pack(result.out)

    assert verify_pack(result.out, result.manifest.root).passed
    kl: dict[str, list[float]] = {}
    for row in content.tables.tokens.to_pylist():
        kl.setdefault(row["arm"], []).append(row["kl_nats"])
    canary = max(kl, key=lambda arm: sum(kl[arm]))
    assert canary == "int2-g32"
    removed = [arm for arm in kl if "rope=removed" in arm]
    assert len(removed) == 2
    assert all(0 < sum(kl[arm]) < 0.1 * sum(kl[canary]) for arm in removed)
    assert KEY_TRANSFORM_ASSUMPTION in html.unescape((result.out / "report.html").read_text())
