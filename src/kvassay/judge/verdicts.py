"""`judge`: the whole judgement, from rows to exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, FormatVerdict, Outcome, Role, Verdicts
from kvassay.errors import PackError
from kvassay.judge.answer_faults import answer_faults
from kvassay.judge.answer_rows import read_answers
from kvassay.judge.arm_clauses import Evidence, JudgedArm, judge_arm
from kvassay.judge.formats import Conclusion, conclude, format_verdict, format_verdicts, overall
from kvassay.judge.generation_faults import generation_faults
from kvassay.judge.generation_rows import read_generations
from kvassay.judge.numeric import tensor_faults
from kvassay.judge.pairing import item_faults, joined, token_faults
from kvassay.judge.rows import NO_TENSORS, ArrowTable, read_items, read_tensors, read_tokens
from kvassay.judge.run_controls import RunControls
from kvassay.judge.sequential import stop_faults
from kvassay.judge.token_slices import run_counts


def judge(
    contract: Contract,
    arms: Sequence[Arm],
    ledgers: Mapping[str, ByteLedger],
    tokens: ArrowTable,
    items: ArrowTable,
    *,
    generations: ArrowTable | None = None,
    tensors: ArrowTable | None = None,
    answers: ArrowTable | None = None,
) -> Verdicts:
    """Judge a run. Equal inputs give equal verdicts on every machine; the order of arms and rows does not matter.

    `ledgers` are by arm name. `tokens`, `items` and the other tables are `pyarrow.Table`s with the columns of
    `kvassay.core.records`; clauses of a table that is not given are NOT_MEASURED.
    Formats come out in this order: the contract's candidates, run or not; candidates that it does not name; canaries;
    A/A runs. Raises PackError for tables that cannot be read as rows, rows of undeclared arms, and arms named twice.
    """
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names):
        raise PackError(f"arms must have distinct names, found {sorted(names)}")
    token_table, item_table = read_tokens(tokens, sorted(names)), read_items(items, sorted(names))
    generation_table = read_generations(generations, sorted(names))
    answer_table = read_answers(answers, sorted(names))
    tensor_table = NO_TENSORS if tensors is None else read_tensors(tensors, sorted(names))
    evidence = Evidence(
        tokens=token_table,
        items=item_table,
        generations=generation_table,
        token_faults=token_faults(token_table, contract.text),
        item_faults={
            task: joined(item_faults(item_table, task, contract), stop_faults(contract, task, arms, item_table))
            for task in contract.teacher_forced_tasks
        },
        token_counts=run_counts(token_table, contract.text),
        generation_faults=generation_faults(generation_table, contract.free_running),
        tensors=tensor_table,
        tensor_faults=tensor_faults(tensor_table) if contract.numeric.bounds else {},
        answers=answer_table,
        answer_faults={task: answer_faults(answer_table, task, contract) for task in contract.written_tasks},
    )
    candidates, strangers = _candidates(contract, arms)
    others = sorted(
        (arm for arm in arms if arm.role is not Role.CANDIDATE),
        key=lambda arm: (arm.role is Role.REFERENCE_AGAIN, arm.name),
    )
    judged = {
        arm.name: judge_arm(contract, arm, ledgers.get(arm.name), evidence)
        for arm in (*candidates, *strangers, *others)
    }
    controls = RunControls(contract, list(judged.values()), evidence)

    def gated(arm: Arm) -> JudgedArm:
        return controls.applied(judged[arm.name])

    formats: list[FormatVerdict] = [*format_verdicts(contract, [gated(arm) for arm in candidates])]
    stray = Conclusion(Outcome.INVALID_EVIDENCE, "the contract does not name this candidate")
    formats += [format_verdict(gated(arm), stray) for arm in strangers]
    formats += [format_verdict(one, conclude(one.clauses)) for one in map(gated, others)]
    result = overall(formats)
    return Verdicts(
        contract_sha256=contract.sha256,
        outcome=result.outcome,
        exit_code=int(result.exit_code),
        reason=result.reason,
        controls=controls.results,
        formats=tuple(formats),
    )


def _candidates(contract: Contract, arms: Sequence[Arm]) -> tuple[list[Arm], list[Arm]]:
    """Arms of the contract's candidates in its order, and candidate arms that it does not name.

    A candidate that was not run gets an arm without rows, so that it is judged NOT_MEASURED and never left out.
    """
    found = {arm.format_digest: arm for arm in arms if arm.role is Role.CANDIDATE}
    if len(found) != sum(arm.role is Role.CANDIDATE for arm in arms):
        raise PackError("two candidate arms have the same format; a format is judged once")
    taken = {arm.name for arm in arms}
    ordered: list[Arm] = []
    for text in contract.candidates.order:
        kv_format = parse_format(text)
        arm = found.pop(kv_format.digest, None)
        if arm is None:
            arm = Arm(
                name=text if text not in taken else f"{text} (not run)",
                role=Role.CANDIDATE,
                format_digest=kv_format.digest,
                format=kv_format.model_dump(mode="json"),
                scale_source="none",
                clipped_values=0,
                encoded_values=0,
            )
        ordered.append(arm)
    return ordered, sorted(found.values(), key=lambda arm: arm.name)
