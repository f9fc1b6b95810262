"""Slices of tokens that follow from the rows alone, so a pack can be judged again without a model.

They cut every run's decode positions three ways, each way into parts that share no token and leave none out:

- `position=early|middle|late`: thirds of the scored part, in its order;
- `rarity=rare|common`: rare if the true next token makes up at most one in 2,000 of the run's scored tokens, counted
  over all its documents. In 24 documents of 256 steps that is three occurrences at most, and about a third of the
  positions (docs/design/statistics.md). The run is its own reference, so no list of frequencies is needed, and a run
  of fewer tokens than that cannot tell;
- `confidence=high|low`: high if the reference gives its most likely token half of the probability or more.

All three look at text and reference only. So they are the same for every arm, and no candidate chooses its tokens.
"""

from __future__ import annotations

import math

POSITIONS = ("position=early", "position=middle", "position=late")
RARE, COMMON = "rarity=rare", "rarity=common"
CONFIDENT, UNSURE = "confidence=high", "confidence=low"
DERIVED = (*POSITIONS, RARE, COMMON, CONFIDENT, UNSURE)
_CUTS = tuple(dict.fromkeys(label.partition("=")[0] for label in DERIVED))

RARE_ONE_IN = 2_000
CONFIDENT_NATS = math.log(2)
"""Minus the logarithm of one half: `reference_top1_nats` up to which the reference is confident."""


def is_derived_cut(label: str) -> bool:
    """True for a label along one of the derived cuts, whether or not it names a part of it."""
    name, equals, _ = label.partition("=")
    return bool(equals) and name in _CUTS
