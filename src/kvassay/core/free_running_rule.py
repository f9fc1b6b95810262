"""What the ids of two free-running outputs show: first divergence, edit distance, repetition, emptiness.

Pure functions of token ids, so that the judge recomputes every figure from the rows and a row cannot claim other than
its ids show. An output holds the token that ended it, if one did, as its last id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TokenIds = tuple[int, ...]

NGRAM = 4
MAX_TOKEN_ID = (1 << 31) - 1

_TEXT = re.compile(r"(?:(?:0|[1-9][0-9]{0,9})(?: (?:0|[1-9][0-9]{0,9}))*)?", re.ASCII)


def ids_text(ids: Sequence[int]) -> str:
    """Ids as rows hold them: decimal, joined by single spaces; no ids give the empty text."""
    return " ".join(map(str, ids))


def parse_ids(text: str) -> TokenIds:
    """The ids of a row. Only the text that `ids_text` writes is read, so that equal ids have equal texts.

    Raises ValueError for another spelling and for ids beyond 31 bits.
    """
    if not _TEXT.fullmatch(text):
        raise ValueError(f"found {text[:40]!r}; expected decimal token ids joined by single spaces")
    ids = tuple(map(int, text.split()))
    if ids and max(ids) > MAX_TOKEN_ID:
        raise ValueError(f"found the token id {max(ids)}; expected at most {MAX_TOKEN_ID}")
    return ids


def first_divergence(reference: Sequence[int], candidate: Sequence[int]) -> int | None:
    """Number of tokens before the first that differs; None where the outputs are equal.

    An output that ends where the other goes on diverges there.
    """
    for index, (one, other) in enumerate(zip(reference, candidate, strict=False)):
        if one != other:
            return index
    return None if len(reference) == len(candidate) else min(len(reference), len(candidate))


def levenshtein(reference: Sequence[int], candidate: Sequence[int]) -> int:
    """Least insertions, deletions and substitutions of tokens that turn one output into the other.

    By bit vectors of whole columns (H. Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit
    distances", Nordic Journal of Computing 10 (2003), figure 3), in integers of any length.
    """
    if not reference or not candidate:
        return max(len(reference), len(candidate))
    places: dict[int, int] = {}
    for index, token in enumerate(reference):
        places[token] = places.get(token, 0) | 1 << index
    every, last = (1 << len(reference)) - 1, 1 << (len(reference) - 1)
    rises, falls, distance = every, 0, len(reference)
    for token in candidate:
        match = places.get(token, 0)
        diagonal = (((match & rises) + rises) ^ rises) | match | falls
        right_rises = falls | (every & ~(diagonal | rises))
        right_falls = diagonal & rises
        distance += bool(right_rises & last) - bool(right_falls & last)
        right_rises = (right_rises << 1 | 1) & every
        right_falls = (right_falls << 1) & every
        rises = right_falls | (every & ~(diagonal | right_rises))
        falls = right_rises & diagonal
    return distance


def edit_distance(reference: Sequence[int], candidate: Sequence[int]) -> float:
    """Levenshtein distance over the length of the longer output, 0 to 1; 0 where both are empty."""
    longest = max(len(reference), len(candidate))
    return levenshtein(reference, candidate) / longest if longest else 0.0


def repeated_share(ids: Sequence[int], n: int = NGRAM) -> float:
    """Share of an output's n-grams that occurred in it before, 0 to 1; 0 for outputs too short to have two.

    1 − |unique n-grams| / |n-grams|, as `seq-rep-n` of S. Welleck et al., "Neural text generation with unlikelihood
    training" (ICLR 2020), section 6.
    """
    count = len(ids) - n + 1
    if count < 2:
        return 0.0
    return 1 - len({tuple(ids[start : start + n]) for start in range(count)}) / count


def is_empty(ids: Sequence[int], end_ids: Sequence[int]) -> bool:
    """True for an output that says nothing: no token, or none before the one that ended it."""
    return not ids or ids[0] in end_ids
