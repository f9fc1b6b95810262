"""What removing the rotary embedding of keys before encoding changes on a real model, each with its interval.

    python -m benchmarks.key_rope [MODEL] [--documents 24]

Documents, lengths and intervals as in `benchmarks.orderings`; values stay float16. Prints the table of
docs/design/key-bias.md.
"""

from __future__ import annotations

import argparse

from benchmarks.orderings.scoring import Scores, interval

KEY_CODECS = ("int4:channel32", "int3:channel32", "int2:channel32", "int4:group32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=24)
    arguments = parser.parse_args()
    scores = Scores(arguments.model, arguments.documents)
    plain = {codec: f"k={codec},v=f16" for codec in KEY_CODECS}
    removed = {codec: f"{plain[codec]},rope=removed" for codec in KEY_CODECS}
    scores.run([*plain.values(), *removed.values()])
    print("| key codec | as it is | `rope=removed` | difference (90% interval) |\n|---|---|---|---|")
    for codec in KEY_CODECS:
        before, after = scores.kl[plain[codec]], scores.kl[removed[codec]]
        gain = interval(before - after)
        print(
            f"| `{codec}` | {before.mean():.3g} | {after.mean():.3g} | "
            f"{gain.estimate:.2g} [{gain.lower:.2g}, {gain.upper:.2g}] |"
        )


if __name__ == "__main__":
    main()
