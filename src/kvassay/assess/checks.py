"""What a run refuses: before weights are read where that can be known from metadata, else once they are."""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.assess.arms import PlannedArm
from kvassay.assess.engagement_check import check_engagement
from kvassay.assess.levels.documents import check_text_length
from kvassay.core.contract import Contract
from kvassay.core.geometry import CacheGeometry
from kvassay.core.model_source import geometry_of
from kvassay.core.serving import check_serves
from kvassay.engines.transformers.loading import LoadedModel
from kvassay.errors import ContractError, ModelError


def check_before_loading(model_name: str, contract: Contract, arms: Sequence[PlannedArm]) -> CacheGeometry:
    """The model's shape, from its config; raises KvassayError where contract, formats and model do not go together."""
    subject = contract.subject
    if subject.model is not None and subject.model != model_name:
        raise ContractError(
            f"the contract is for model {subject.model!r}, found {model_name!r}; "
            "assess that model, or change subject.model in a copy of the contract"
        )
    if not contract.needs_run:
        raise ContractError(
            "the contract bounds bytes alone, which need no run: kvassay bytes computes them; "
            "add [fidelity.*], [free_running.*], [numeric.*] or [task.*] to assess what they cost"
        )
    geometry = geometry_of(model_name)
    for arm in arms:
        check_serves(arm.kv_format, geometry)
    check_engagement(contract, arms)
    check_text_length(contract, geometry.max_context, model_name)
    return geometry


def check_subject(contract: Contract, loaded: LoadedModel) -> None:
    """Raise ModelError for another model than the contract binds itself to."""
    for what, expected, found in (
        ("revision", contract.subject.revision, loaded.revision),
        ("tokenizer_sha256", contract.subject.tokenizer_sha256, loaded.hashes.tokenizer),
    ):
        if expected is not None and expected != found:
            raise ModelError(f"subject.{what} of the contract is {expected}, the model has {found}")
