"""What a pack does not prove, written from what it holds and what it lacks."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.records import Role
from kvassay.pack.reader import PackContent
from kvassay.report.answer import level
from kvassay.report.arrow_rows import distinct, largest
from kvassay.report.figures import NOT_RECORDED
from kvassay.report.free_fields import number_at, objects_at, text_at

_FIDELITY = {
    "kl_mean": "the mean of KL",
    "kl_exceed": "the tail of KL",
    "reverse_kl_mean": "the mean of the reverse KL",
    "nll_delta": "the change of log likelihood of the text",
    "top1_agreement": "agreement of the most likely token",
    "topk_agreement": "agreement of the ten most likely tokens",
}


class Scope(NamedTuple):
    """Sentences under one heading."""

    heading: str
    sentences: tuple[str, ...]


def scope_limits(content: PackContent) -> list[Scope]:
    found = [
        Scope("Engine, release and kernels", _engine(content)),
        Scope("Model and workload", _workload(content)),
        Scope("Quality", _quality(content)),
        Scope("Bytes, capacity and speed", _bytes(content)),
        Scope("Statistics", _statistics(content)),
        Scope("Platforms", _platforms(content)),
    ]
    return [scope for scope in found if scope.sentences]


def _engine(content: PackContent) -> tuple[str, ...]:
    name = text_at(content.subject, "engine", "name") or f"an engine that is {NOT_RECORDED}"
    version = text_at(content.subject, "engine", "version") or NOT_RECORDED
    attention = text_at(content.subject, "engine", "attention") or NOT_RECORDED
    return (
        f"Measured with {name}, version {version}, attention path {attention}. Other engines, other "
        "releases and other "
        "attention paths were not run.",
        "The formats ran as kvassay's own codecs. This pack holds no proof that an engine's kernel of the same name "
        "writes the same codes or computes the same attention.",
        "No figure is taken over from a paper or a vendor: this report names only what its rows hold.",
        "What prompt tokens read of older prompt tokens is a policy; here it was "
        f"“{content.contract.inference.prefill_reads}”. "
        "Engines differ in it.",
    )


def _workload(content: PackContent) -> tuple[str, ...]:
    subject, contract = content.subject, content.contract
    model = text_at(subject, "model", "name") or f"a model that is {NOT_RECORDED}"
    revision = text_at(subject, "model", "revision") or NOT_RECORDED
    corpus = text_at(subject, "corpus", "name") or contract.text.corpus
    tokens = content.tables.tokens
    sentences = [
        f"One model, {model} (revision {revision}). Other models, other weights of it and fine-tunes of it "
        "were not measured: "
        "KV formats that one model bears can ruin another."
    ]
    if contract.subject.weights != "stored":
        sentences.append(
            f"The weights ran as {contract.subject.weights}, in the reference and under every format alike: what that "
            "costs the model is part of no figure here, and verdicts on the stored weights are another run's."
        )
    if tokens.num_rows:
        documents = len(distinct(tokens, "document"))
        longest = (largest(tokens, "position") or 0) + 1
        limit = number_at(subject, "geometry", "max_context")
        share = f" of the {limit:,} that the model's config allows" if isinstance(limit, int) else ""
        sentences.append(
            f"One corpus, {corpus}, {documents:,} documents. No query had more than {longest:,} tokens of "
            f"history{share}; nothing "
            "is shown for longer contexts."
        )
        names = distinct(tokens, "slice")
        if len(names) == 1:
            sentences.append("The text is of one kind: languages and domains are not told apart.")
    for task in contract.teacher_forced_tasks:
        sentences.append(
            f"The task “{task}” ({contract.task[task].kind}) is generated from a seed and scored teacher-forced. It "
            "shows what it asks for and no other skill; whether an answer that the model writes by itself would be "
            "right, or could be parsed, it does not show."
        )
    for task, bound in contract.written_tasks.items():
        sentences.append(
            f"The task “{task}” ({bound.kind}) is generated from a seed, and the model writes its answers by itself, "
            f"greedily, {_answer_length(bound)}. It shows what it asks for and no other skill. That a text is that of "
            "its token ids cannot be checked without the tokenizer."
        )
    return tuple(sentences)


def _quality(content: PackContent) -> tuple[str, ...]:
    contract = content.contract
    sentences: list[str] = []
    absent = [words for name, words in _FIDELITY.items() if getattr(contract.fidelity, name) is None]
    if absent:
        sentences.append(f"The contract has no bound on {_listed(absent)}.")
    if content.tables.tokens.num_rows:
        sentences.append(
            "Fidelity was scored on a fixed history (teacher-forced)."
            + (
                ""
                if content.tables.generations.num_rows
                else " Free-running generation, where an early difference changes all that follows, was not measured."
            )
        )
    else:
        sentences.append("No token rows exist: fidelity was not measured.")
    if content.tables.generations.num_rows:
        free = contract.free_running
        sentences.append(
            f"Free-running outputs are of at most {free.generated_tokens:,} tokens after prompts of "
            f"{free.prompt_tokens:,}; nothing is shown for longer ones. A divergence is another text, which need not "
            "be a worse one: whether outputs are still right is what tasks show."
        )
    if not contract.task:
        sentences.append("The contract has no task: a small KL alone does not show that a task is still solved.")
    elif not content.tables.items.num_rows + content.tables.answers.num_rows:
        sentences.append("No task items exist: no task was measured.")
    if not content.tables.tensors.num_rows:
        sentences.append("No tensor rows exist: array, score, weight and output errors were not measured.")
    else:
        documents = len(distinct(content.tables.tensors, "document"))
        plural = "" if documents == 1 else "s"
        sentences.append(
            f"Array, score, weight and output errors come from {documents} document{plural}; "
            + (
                "the clauses on them bound attention and not what the model answers."
                if contract.numeric.bounds
                else "they explain a result and decide no verdict."
            )
        )
    if not objects_at(content.subject, "examples"):
        sentences.append("No worst examples are recorded.")
    for waiver in contract.waivers:
        sentences.append(f"Waived since {waiver.granted.isoformat()}: {waiver.clause}. Reason: {waiver.reason}")
    return tuple(sentences)


def _bytes(content: PackContent) -> tuple[str, ...]:
    sentences = [
        "Capacity, latency and throughput were not measured. Fewer stored bytes do not by themselves mean "
        "a larger batch or "
        "a faster step: decoding costs time, and its buffers cost memory."
    ]
    computed_only = sorted(name for name, pair in content.ledgers.items() if pair.allocated is None)
    if computed_only:
        sentences.append(f"Bytes are computed and not read from a real cache for: {', '.join(computed_only)}.")
    if any(pair.computed.transient_basis is not None for pair in content.ledgers.values()):
        bases = sorted(
            {
                ledger.transient_basis.value.replace("_", "-")
                for pair in content.ledgers.values()
                for ledger in pair
                if ledger is not None and ledger.transient_basis is not None
            }
        )
        sentences.append(f"Transient bytes are {' and '.join(bases)}. The peak of a device was not measured.")
    if not content.ledgers:
        sentences.append("No byte ledger is recorded.")
    sentences.append(
        "The ledger holds for its number of tokens and rows; at other lengths windows and padding weigh differently."
    )
    return tuple(sentences)


def _statistics(content: PackContent) -> tuple[str, ...]:
    plan = content.contract.inference
    sentences = [
        f"Each bound is nominally wrong at most {level(plan.alpha)} of the time, if documents and contexts are "
        "independent draws of the workload that matters to you. In simulations at a nominal 5% it was wrong in at most "
        "7% of runs, and in up to 8.5% where documents differ very much from each other (lognormal sigma 1). "
        "Choosing another workload is a judgement that no interval covers."
    ]
    if content.contract.candidates.multiplicity == "fixed-sequence":
        sentences.append(
            "Formats are claimed in the fixed order of the contract and claims stop at the first that is not MET; "
            "figures after that are shown and prove nothing."
        )
    not_run = [control for control in content.verdicts.controls if control.passed is None]
    for control in not_run:
        sentences.append(f"The control “{control.name}” was not run: {control.reason}")
    if not any(arm.role is Role.CANARY for arm in content.arms):
        sentences.append("No canary ran: it is not shown that the contract can see damage.")
    if not any(arm.role is Role.REFERENCE_AGAIN for arm in content.arms):
        sentences.append("The reference was not run against itself: the noise floor is not known.")
    return tuple(sentences)


def _platforms(content: PackContent) -> tuple[str, ...]:
    tried = text_at(content.environment, "platform") or NOT_RECORDED
    cpu = text_at(content.environment, "cpu") or NOT_RECORDED
    return (
        f"Tried: {tried}, CPU {cpu}. Not tried: every other machine, operating system and accelerator. "
        "Figures of another device can differ in their last digits, and where its kernels differ, by more.",
    )


def _answer_length(bound: TaskBound) -> str:
    if bound.answer_tokens is not None:
        return f"in at most {bound.answer_tokens:,} tokens"
    return "in at most as many tokens as the true answer could take, and a few more"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
