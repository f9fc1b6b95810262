"""What padding and dequantization take from the saving, measured in real storages and in the allocator's record."""

from __future__ import annotations

import gc

import pytest

from kvassay.core.geometry import Owner
from kvassay.core.ledger import predict_ledger
from tests.cache.test_known_faults_memory import filled, watched_step

HEADS, DIM, TOKENS = 4, 64, 1025
"""One token beyond a page, so the last page is nearly empty."""


@pytest.mark.parametrize("text", ["int4-g32", "int8-token-head"])
def test_r24_padding_and_dequantization_lower_the_peak_saving(text: str) -> None:
    """Saving of the codes alone > of all that is stored > at the peak of a step > at that of a step that decodes."""
    savings = {}
    for path in ("tiled", "decoded"):
        cache = filled(text, 1, HEADS, 2, DIM, TOKENS, path)
        gc.collect()
        peak = watched_step(cache, 2, 1).peak_nbytes
        ledger = cache.ledger()
        plain = 2 * 2 * HEADS * DIM * (TOKENS + 1)
        padding = ledger.owner_nbytes(Owner.PADDING)
        assert padding > 0
        assert ledger.persistent_nbytes == predict_ledger(cache.geometry, cache.kv_format, TOKENS + 1).persistent_nbytes
        savings["codes"] = 1 - ledger.owner_nbytes(Owner.CODES) / plain
        savings["stored without padding"] = 1 - (ledger.persistent_nbytes - padding) / plain
        savings["stored"] = 1 - ledger.persistent_nbytes / plain
        savings[path] = 1 - (ledger.persistent_nbytes + peak) / plain
    order = ["codes", "stored without padding", "stored", "tiled", "decoded"]
    found = [savings[name] for name in order]
    assert found == sorted(found, reverse=True), savings
    assert savings["decoded"] < 0 < savings["stored"], "beside a decoded layer nothing is saved"
