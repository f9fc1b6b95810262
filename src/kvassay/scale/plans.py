"""Plans in a store: what was asked of it, so that workers and readers need no matrix file."""

from __future__ import annotations

from pydantic import ValidationError

from kvassay.errors import StoreError
from kvassay.pack.strict_json import parse_json, render_json
from kvassay.scale.cell import Group, MatrixPlan
from kvassay.scale.store import Store


def write_plan(store: Store, plan: MatrixPlan) -> str:
    """Its digest, under which it can be read."""
    digest = plan.digest
    store.put_new(f"plans/{digest}.json", render_json(plan.model_dump(mode="json")))
    return digest


def read_plan(store: Store, digest: str) -> MatrixPlan:
    data = store.read(f"plans/{digest}.json")
    if data is None:
        raise StoreError(f"{store.url} has no plan {digest[:12]}; kvassay run writes one")
    try:
        plan = MatrixPlan.model_validate(parse_json(data, f"plans/{digest}.json"))
    except ValidationError as error:
        raise StoreError(f"{store.url}/plans/{digest}.json is no plan of this version: {error}") from error
    if plan.digest != digest:
        raise StoreError(f"{store.url}/plans/{digest}.json is not what was written; remove it and run the matrix again")
    return plan


def read_groups(store: Store) -> list[Group]:
    """Every group that was ever asked of the store, each once; raises StoreError for a store without plans."""
    plans = [read_plan(store, name.removesuffix(".json")) for name in store.names("plans")]
    if not plans:
        raise StoreError(f"{store.url} holds no matrix; kvassay run MATRIX --out {store.url} makes it one")
    return list({group.id: group for plan in plans for group in plan.groups}.values())
