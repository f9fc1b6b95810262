"""False passes of other tools, each with the right verdict here: one place where a reader finds the whole list.

1. n = 1 or n = 3 without discordance at a margin of 1%            -> not MET
2. a quantized cache that compressed 0 bytes, or 1 token            -> invalid evidence
3. an axis that did not run                                         -> not measured, never "intact"
4. no engine found                                                  -> an error, not an empty table with exit 0
5. a noisier reference                                              -> never loosens a gate
6. q8_0 priced at 1.000 byte a value                                -> 1.0625
7. a margin edited after the run                                    -> another hash, and the audit fails
8. inconclusive and breached                                        -> never one exit code
9. a breached run                                                   -> never exits 0

Further ones that statistics invite: stopping when it looks good, peeking, a zero-wide interval of no event, a bound
that takes tokens for independent, a heavy tail that two dozen documents do not show.

Most are tested where their subject is; `WHERE` names them. Those that have no other home are below.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys

import numpy as np
import pytest

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.ledger import predict_ledger
from kvassay.core.records import Outcome
from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.cluster import cluster_bound
from kvassay.stats.eprocess import wealths
from tests.judge.runs import GEOMETRY, clause_of, contract, judged, verdict_of

WHERE = {
    "one or three items": [
        "judge.test_outcomes.test_false_pass_one_or_three_items",
        "stats.test_binary.test_false_pass_one_or_three_items_without_discordance",
    ],
    "nothing or one token was compressed": [
        "judge.test_controls.test_false_pass_a_cache_that_compressed_nothing_or_one_token",
        "judge.test_controls.test_false_pass_nothing_was_encoded",
        "judge.test_controls.test_false_pass_a_ledger_without_codes",
        "judge.test_controls.test_false_pass_no_drift_at_all",
        "judge.test_controls.test_false_pass_items_that_did_not_read_the_store",
    ],
    "an axis that did not run": [
        "judge.test_outcomes.test_an_axis_that_did_not_run_is_not_measured_and_named",
        "judge.test_outcomes.test_nothing_was_run",
    ],
    "no engine found": ["judge.test_false_passes.test_false_pass_no_engine_found_is_an_error"],
    "a noisier reference": ["judge.test_controls.test_false_pass_a_noisier_reference_never_loosens_the_gate"],
    "q8_0 at one byte": ["judge.test_false_passes.test_false_pass_q8_0_is_priced_with_its_scales"],
    "a margin edited after the run": [
        "pack.test_verify.test_an_edited_margin",
        "pack.test_verify.test_an_edited_margin_with_every_hash_and_source_made_to_fit_is_caught_by_judging_again",
    ],
    "exit codes": [
        "judge.test_outcomes.test_inconclusive_and_breached_never_share_an_exit_code_and_breached_never_exits_0",
        "judge.test_outcomes.test_three_outcomes_and_their_exit_codes",
    ],
    "KL alone": ["judge.test_outcomes.test_kl_alone_never_meets_a_contract_with_tasks"],
    "stopping when it looks good": [
        "judge.test_outcomes.test_another_number_of_documents_than_planned_is_inconclusive",
        "judge.test_outcomes.test_another_number_of_contexts_than_planned_is_inconclusive",
        "judge.test_sequential.test_rows_after_the_stop_or_a_stop_at_a_wrong_place_are_refused",
        "judge.test_false_passes.test_false_pass_peeking_with_a_fixed_n_test",
    ],
    "a zero-wide interval": [
        "stats.test_exceedance.test_false_pass_all_values_zero_or_equal",
        "judge.test_false_passes.test_false_pass_nothing_measured_reads_as_nothing_lost",
    ],
    "tokens taken for independent": ["stats.test_cluster.test_a_naive_token_error_would_be_far_too_small"],
    "a tail that the sample lacks": [
        "judge.test_false_passes.test_false_pass_a_heavy_tail_that_two_dozen_documents_lack"
    ],
    "a Wald bound": ["judge.test_false_passes.test_false_pass_a_wald_bound_of_few_pairs"],
}


@pytest.mark.parametrize("name", [name for names in WHERE.values() for name in names])
def test_every_false_pass_of_the_list_has_its_test(name):
    module, _, function = name.rpartition(".")
    assert callable(getattr(importlib.import_module(f"tests.{module}"), function))


def test_false_pass_no_engine_found_is_an_error(tmp_path):
    """Without torch there is no engine: exit code 2 and a way out, not an empty table and exit code 0."""
    (tmp_path / "c.toml").write_text(
        'schema = "kvassay.contract/1"\nname = "x"\n[candidates]\norder = ["q8_0"]\n[task.recall]\nmargin = 0.1\n'
    )
    code = (
        "import sys; sys.modules['torch'] = None; from kvassay.cli.app import run; "
        f"sys.exit(run(['assess', 'smollm2-135m', '--contract', {str(tmp_path / 'c.toml')!r}]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 2
    assert found.stdout == ""
    assert "torch" in found.stderr


def test_false_pass_q8_0_is_priced_with_its_scales():
    """34 bytes for 32 values: 1.0625 bytes a value, not 1. Block tables come on top and are no part of the price."""
    ledger = predict_ledger(GEOMETRY, parse_format("q8_0"), 64)
    values = sum(2 * layer.kv_heads * layer.head_dim for layer in GEOMETRY.layers) * 64
    assert (ledger.owner_nbytes(Owner.CODES) + ledger.owner_nbytes(Owner.SCALES)) / values == 1.0625
    assert ledger.persistent_nbytes / values > 1.0625


def test_false_pass_nothing_measured_reads_as_nothing_lost():
    verdicts = judged(contract())
    clause = clause_of(verdicts, "int8-token-head")
    assert (clause.outcome, clause.estimate, clause.lower, clause.upper) == (Outcome.NOT_MEASURED, None, None, None)
    assert verdict_of(verdicts, "int8-token-head").outcome is Outcome.NOT_MEASURED
    assert verdicts.exit_code == 3


def test_false_pass_peeking_with_a_fixed_n_test():
    """A look every 50 of 500 items at the margin: a fixed-n bound says MET far too often, wealth does not."""
    rng, margin, runs = np.random.default_rng(4), 0.05, 400
    loss = (0.2 + margin) / 2
    uniform = rng.random((runs, 500))
    changes = np.where(uniform < loss, -1, np.where(uniform < 0.2, 1, 0))
    looks = np.arange(50, 501, 50)
    losses, gains = ((changes == side).cumsum(axis=1)[:, looks - 1] for side in (-1, 1))
    delta = (gains - losses) / looks
    wald = delta - 1.645 * np.sqrt(((losses + gains) / looks - delta**2) / looks)
    peeked = np.mean((wald > -margin).any(axis=1))
    honest = np.mean([(wealths(one, margin)[0] >= 20).any() for one in changes])
    assert peeked > 0.12
    assert honest <= 0.05


def test_false_pass_a_wald_bound_of_few_pairs():
    """50 pairs and no loss seen: Wald's interval has no width, so it passes 60% of formats that lose exactly 1%."""
    n, margin = 50, 0.01
    assert (1 - margin) ** n > 0.6
    found = paired_noninferiority(n, 0, 0, margin)
    assert found.lower < -margin
    assert math.isclose(found.exact_p_met, (1 - margin) ** n, rel_tol=1e-6)


def test_false_pass_a_heavy_tail_that_two_dozen_documents_lack():
    """Lognormal documents of sigma 1 at the limit: no such run may pass more often than 6% of the time.

    One sample by hand: 20 documents without their tail, whose bootstrap alone would pass at a limit of 1.
    """
    quantiles = np.exp(np.array([-1.6 + 0.15 * index for index in range(20)]) - 0.5)
    found = cluster_bound(quantiles, np.ones(20), 1.0, replicates=5000)
    assert found.floored
    shifted = cluster_bound(quantiles - 100, np.ones(20), 1.0, replicates=5000)
    assert shifted.upper + 100 < found.upper
