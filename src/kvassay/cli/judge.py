"""`kvassay judge`: judge a pack's rows again, under its own contract or another, without a run and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.errors import PackError, printable


def judge(
    pack: Path,
    /,
    *,
    contract: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Judge the rows of a pack again. Exit code 0 met, 1 breached, 3 inconclusive, 2 no answer.

    Under the pack's own contract the verdicts must come out byte for byte as the pack holds them. Under another one
    the outcome is "post hoc": that contract was not fixed before the run.

    Parameters
    ----------
    pack
        An evidence pack.
    contract
        Another contract, whose bounds may differ and whose rows may not: the same texts, lengths, items and seed.
    json
        Print one JSON document.
    """
    from kvassay.core.contract import load_contract
    from kvassay.core.digest import sha256_bytes
    from kvassay.pack.layout import VERDICTS
    from kvassay.pack.plain_files import read_plain
    from kvassay.pack.post_hoc import judge_post_hoc, judge_rows
    from kvassay.pack.reader import read_whole_pack
    from kvassay.pack.strict_json import MAX_JSON_NBYTES, render_json

    other = None if contract is None else load_contract(contract)
    content = read_whole_pack(pack)
    assert content.manifest is not None, "read_pack reads it"
    found: dict[str, Any] = {"pack": str(pack), "root": content.manifest.root}
    if other is None or other.sha256 == content.contract.sha256:
        judged = judge_rows(content, content.contract, content.arms)
        verdicts = judged.model_dump(mode="json")
        rendered = render_json(verdicts)
        if rendered != read_plain(pack, VERDICTS, MAX_JSON_NBYTES):
            raise PackError(
                f"judging {str(pack)!r} again gives other bytes than its {VERDICTS} "
                f"(SHA-256 {sha256_bytes(rendered)[:12]}); kvassay verify says where they differ"
            )
        found |= {"post_hoc": False, "outcome": judged.outcome.value, "bytes_equal": True}
        found |= {"verdicts_sha256": sha256_bytes(rendered), "changed": [], "left_out": []}
    else:
        judged = judge_post_hoc(content, other)
        verdicts = judged.to_json()
        found |= {"post_hoc": True, "outcome": judged.outcome, "bytes_equal": None, "verdicts_sha256": None}
        found |= {"changed": [_change(each) for each in judged.changed], "left_out": list(judged.left_out)}
    if json:
        print_json({**found, "exit_code": verdicts["exit_code"], "verdicts": verdicts})
    else:
        _print(found, verdicts)
    return verdicts["exit_code"]


def _change(each: Any) -> dict[str, Any]:
    return {"key": each.path, "pack": each.stored, "contract": each.again}


def _print(found: dict[str, Any], verdicts: dict[str, Any]) -> None:
    for one in verdicts["formats"]:
        print(f"{printable(one['arm'])}: {_words(one['outcome'])}: {printable(one['reason'])}")
    for control in verdicts["controls"]:
        state = "not run" if control["passed"] is None else "passed" if control["passed"] else "FAILED"
        print(f"control {control['name']}: {state}: {printable(control['reason'])}")
    for each in found["changed"]:
        print(printable(f"changed {each['key']}: {each['pack']!r} in the pack, {each['contract']!r} now"))
    if found["left_out"]:
        print(f"left out: {printable(', '.join(found['left_out']))}")
    if found["bytes_equal"]:
        print(f"judged again, byte for byte as the pack holds it: SHA-256 {found['verdicts_sha256']}")
    reason = printable(verdicts["reason"])
    print(f"{_words(verdicts['outcome'])} (exit code {verdicts['exit_code']}): {reason}")


def _words(outcome: str) -> str:
    return outcome.replace("_", " ").upper()
