"""The orderings that METHODS of this field predict, each as a paired comparison that can come out either way.

Where keys per channel meet keys per token, both sides keep the same mean tail of exact tokens: a per-channel block of
32 waits for its tokens, so it keeps recent + 15.5 tokens on average, and the per-token side gets a window of that size.
"""

from __future__ import annotations

from typing import NamedTuple

CHANNEL_TAIL, TOKEN_TAIL = "recent=32", "recent=48"


class Claim(NamedTuple):
    """`better` is predicted to have the lower KL."""

    number: str
    text: str
    better: str
    worse: str
    note: str = ""


PAIRS: tuple[Claim, ...] = (
    *(
        Claim(
            f"1{letter}",
            f"K per channel beats K per token at {bits} bit",
            f"k=int{bits}:channel32,v=f16,{CHANNEL_TAIL}",
            f"k=int{bits}:group32,v=f16,{TOKEN_TAIL}",
        )
        for letter, bits in (("a", 2), ("b", 3))
    ),
    *(
        Claim(
            f"1{letter}",
            f"V per token beats V per channel at {bits} bit",
            f"k=f16,v=int{bits}:group32,{TOKEN_TAIL}",
            f"k=f16,v=int{bits}:channel32,{CHANNEL_TAIL}",
        )
        for letter, bits in (("c", 2), ("d", 3))
    ),
    Claim(
        "2",
        "K 8 bit with V 4 bit beats K 4 bit with V 8 bit",
        "k=int8:token-head,v=int4:group32",
        "k=int4:group32,v=int8:token-head",
    ),
    *(
        Claim(
            f"3{letter}",
            f"Lloyd-Max at {bits} bit beats Lloyd-Max at {bits - 1} bit with QJL",
            f"k=lloyd-{bits}:token-head/had,v=f16",
            f"k=lloyd-qjl-{bits}:token-head/had,v=f16",
        )
        for letter, bits in (("a", 3), ("b", 4))
    ),
    Claim(
        "4a",
        "Hadamard helps K per token at 4 bit",
        "k=int4:token-head/had,v=f16",
        "k=int4:token-head,v=f16",
    ),
    Claim(
        "5a",
        "Hadamard with per-channel scales is worse than per-channel scales alone",
        f"k=int4:channel32,v=f16,{CHANNEL_TAIL}",
        f"k=int4:channel32/had,v=f16,{CHANNEL_TAIL}",
        "scales from each block, since static per-channel scales under a rotation are refused",
    ),
    Claim(
        "5b",
        "Hadamard with per-channel scales is worse than Hadamard with per-token scales",
        f"k=int4:group32/had,v=f16,{TOKEN_TAIL}",
        f"k=int4:channel32/had,v=f16,{CHANNEL_TAIL}",
    ),
    *(
        Claim(
            f"6{letter}",
            f"norm correction helps at {bits} bit",
            f"kv=lloyd-{bits}:token-head/had/norm=corrected",
            f"kv=lloyd-{bits}:token-head/had/norm=plain",
        )
        for letter, bits in (("a", 3), ("b", 4))
    ),
    Claim("7", "NVFP4 beats MXFP4", "kv=nvfp4", "kv=mxfp4", "4.5 stored bits against 4.25"),
    Claim(
        "8",
        "KVarN-4 beats rotated q4_0 at no more bytes and the same mean tail",
        "k=kvarn-4:tile128/had/axis=channel,v=kvarn-4:tile128/had/axis=token,recent=32",
        "kv=q4_0/had,recent=96",
        "the tile waits for 128 tokens, so q4_0 gets a window of 32 + 63.5",
    ),
)


class Contrast(NamedTuple):
    """A prediction about the size of two effects: log(KL without / KL with) of the first is the larger one."""

    number: str
    text: str
    larger: tuple[str, str]
    smaller: tuple[str, str]


CONTRASTS: tuple[Contrast, ...] = (
    Contrast(
        "4b",
        "Hadamard does more for K per token at 4 bit than at 8 bit",
        ("k=int4:token-head,v=f16", "k=int4:token-head/had,v=f16"),
        ("k=int8:token-head,v=f16", "k=int8:token-head/had,v=f16"),
    ),
    Contrast(
        "4c",
        "Hadamard does more for K than for V at 4 bit",
        ("k=int4:token-head,v=f16", "k=int4:token-head/had,v=f16"),
        ("k=f16,v=int4:token-head", "k=f16,v=int4:token-head/had"),
    ),
    Contrast(
        "9a",
        "sinks gain more at 2 bit than at 4 bit",
        ("kv=int2:group32", "kv=int2:group32,sinks=4"),
        ("kv=int4:group32", "kv=int4:group32,sinks=4"),
    ),
    Contrast(
        "9b",
        "sinks gain more at 4 bit than at 8 bit",
        ("kv=int4:group32", "kv=int4:group32,sinks=4"),
        ("kv=int8:group32", "kv=int8:group32,sinks=4"),
    ),
)

MSE_FORMATS: tuple[str, ...] = (
    "k=int4:channel32,v=f16",
    "k=int4:group32,v=f16",
    "k=int4:group32/had,v=f16",
    "k=int4:token-head,v=f16",
    "k=int4:token-head/had,v=f16",
    "k=q4_0,v=f16",
    "k=nf4:group32,v=f16",
    "k=lloyd-4:token-head/had,v=f16",
    "k=nvfp4,v=f16",
    "k=mxfp4,v=f16",
    "k=int3:channel32,v=f16",
    "k=int3:group32,v=f16",
    "k=int3:group32/had,v=f16",
    "k=lloyd-3:token-head/had,v=f16",
)
"""Of claim 11: does the squared error of keys rank formats as KL does?"""

ALLOCATED_LOW, ALLOCATED_MIDDLE, ALLOCATED_HIGH = "int2:group32", "int3:group32", "int4:group32"
"""Of claim 10: as many layers at 4 bit as at 2 bit store what 3 bit everywhere stores."""
