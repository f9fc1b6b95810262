"""Equal inputs give equal bytes, whatever the order of rows and arms; and it is quick."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from kvassay.core.digest import canonical_json
from kvassay.core.records import ITEM_COLUMNS, TOKEN_COLUMNS, Role
from kvassay.judge import judge
from tests.judge.runs import CANARY, ArmRun, again, canary, candidate, contract, table, with_items, with_tokens

TEXT = (
    "[fidelity.kl_mean]\nmax = 0.01\n[fidelity.kl_exceed]\ntau_nats = 0.1\nmax_rate = 0.01\n"
    "[fidelity.nll_delta]\nmax = 0.01\n[task.recall]\nmargin = 0.05\nitems = 64\n"
    "[bytes]\npersistent_per_token_max = 5000\npeak_transient_max = 1e9\n"
)


def inputs():
    runs = [
        with_items(candidate("int8-token-head", 0.001), 0),
        with_items(candidate("q4_0", 0.009), 3, 1),
        with_items(canary(), 50),
        with_items(again(), 0),
    ]
    tokens = table((run.tokens for run in runs), TOKEN_COLUMNS)
    items = table((run.items for run in runs), ITEM_COLUMNS)
    arms, ledgers = [run.record() for run in runs], {run.name: run.ledger() for run in runs}
    return contract(TEXT, order=("int8-token-head", "q4_0")), arms, ledgers, tokens, items


def test_the_order_of_rows_and_arms_does_not_matter():
    of, arms, ledgers, tokens, items = inputs()
    first = judge(of, arms, ledgers, tokens, items).model_dump_json()
    rng = np.random.default_rng(3)
    for _ in range(3):
        shuffled = [arms[i] for i in rng.permutation(len(arms))]
        some = tokens.take(rng.permutation(tokens.num_rows))
        others = items.take(rng.permutation(items.num_rows))
        assert judge(of, shuffled, dict(reversed(ledgers.items())), some, others).model_dump_json() == first


def test_another_process_gives_the_same_bytes():
    of, arms, ledgers, tokens, items = inputs()
    here = judge(of, arms, ledgers, tokens, items).model_dump_json()
    code = (
        "from tests.judge.test_purity import inputs; from kvassay.judge import judge; "
        "print(judge(*inputs()).model_dump_json())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


def test_verdicts_are_plain_json():
    """No NaN or infinity anywhere, even where a side is not bounded: RFC 8785 refuses them."""
    of, arms, ledgers, tokens, items = inputs()
    runs = [candidate(mean_kl=0.0), canary(), again()]
    runs[0].tokens["kl_nats"][0] = 0.5
    verdicts = judge(
        contract(),
        [run.record() for run in runs],
        {},
        table((run.tokens for run in runs), TOKEN_COLUMNS),
        table([], ITEM_COLUMNS),
    )
    clause = verdicts.formats[0].clauses[0]
    assert clause.upper is None
    assert clause.lower is not None
    for found in (verdicts, judge(of, arms, ledgers, tokens, items)):
        assert json.loads(canonical_json(found.model_dump(mode="json"))) == found.model_dump(mode="json")


@pytest.mark.parametrize("chunks", [1, 7])
def test_how_the_table_is_chunked_does_not_matter(chunks):
    import pyarrow as pa

    of, arms, ledgers, tokens, items = inputs()
    first = judge(of, arms, ledgers, tokens, items).model_dump_json()
    size = -(-tokens.num_rows // chunks)
    pieces = pa.concat_tables([tokens.slice(at, size) for at in range(0, tokens.num_rows, size)])
    assert judge(of, arms, ledgers, pieces, items).model_dump_json() == first


def test_a_quarter_of_a_million_rows_in_seconds():
    """24 documents of 3,472 positions under 3 arms."""
    runs = [
        with_tokens(ArmRun(name, role, kv_format), kl, documents=24)
        for name, role, kv_format, kl in (
            ("int8-token-head", Role.CANDIDATE, None, 0.001),
            (CANARY, Role.CANARY, None, 0.8),
            ("f32 again 1", Role.REFERENCE_AGAIN, "f32", 0.0),
        )
    ]
    for run in runs:
        for name, values in run.tokens.items():
            if name == "position":
                run.tokens[name] = [96 + 217 * (index % 16) + copy for index in range(384) for copy in range(217)]
            else:
                run.tokens[name] = [value for value in values for _ in range(217)]
        if run.role is not Role.REFERENCE_AGAIN:
            run.tokens["stored_reads"] = [position - 32 for position in run.tokens["position"]]
    tokens = table((run.tokens for run in runs), TOKEN_COLUMNS)
    assert tokens.num_rows > 249_000
    of = contract(scored_tokens=16 * 217 + 1)
    began = time.process_time()
    verdicts = judge(of, [run.record() for run in runs], {}, tokens, table([], ITEM_COLUMNS))
    assert time.process_time() - began < 5
    assert verdicts.exit_code == 0
