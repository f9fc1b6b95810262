"""One item of work against the store, whoever asks for it: done already, held by another, failed, or done now."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

from kvassay.core.digest import sha256_bytes
from kvassay.errors import StoreError
from kvassay.scale.bench import Bench
from kvassay.scale.cell import Item
from kvassay.scale.cell_files import is_done, read_units, whole_is_done
from kvassay.scale.claims import Held, Owner, Watch, claimed
from kvassay.scale.failures import Failure, failures_of, record_failure
from kvassay.scale.measure import run_cell, run_reference
from kvassay.scale.results import assemble, write_cell, write_reference
from kvassay.scale.state import State
from kvassay.scale.store import Store


def reference_item(item: Item) -> Item:
    return item._replace(cell=None, part=0, parts=1)


def state_before(store: Store, item: Item, parts: int) -> State | None:
    """What is known without working: kept, quarantined, waiting; None where it can be done."""
    if is_done(store, item):
        return State.KEPT
    if failures_of(store, item.id).quarantined:
        return State.QUARANTINED
    if item.cell is not None and not whole_is_done(store, reference_item(item)):
        own = [item._replace(cell=None, part=part, parts=parts) for part in range(parts)]
        failed = any(failures_of(store, part.id).quarantined for part in own)
        return State.QUARANTINED if failed else State.WAITING
    return None


def perform(
    store: Store,
    bench: Bench,
    item: Item,
    owner: Owner,
    watch: Watch,
    given: Mapping[str, bytes | memoryview] | None = None,
) -> State:
    """Do one item; raises StoreError where the store itself fails, since then no other item would fare better.

    `given` are files of the reference that a cluster brought along; others are read from the store.
    """
    known = state_before(store, item, item.parts)
    if known is State.KEPT and item.parts > 1 and not whole_is_done(store, item):
        assemble(store, item)  # the last worker may have gone before it could
    if known is not None:
        return known
    with claimed(store, item.id, owner, watch) as held:
        if held is Held.NOT:
            return State.BUSY
        if held is Held.TAKEN_OVER:
            text = "its worker ended, or could not say any more that it works"
            record_failure(store, item.id, Failure(kind="abandoned", text=text, worker=""))
        if is_done(store, item):
            return State.KEPT
        try:
            _measure(store, bench, item, given or {})
        except StoreError:
            if item.parts > 1 and whole_is_done(store, item):
                return State.KEPT  # others were faster, and removed the parts while this one was being written
            raise
        except Exception:
            text = traceback.format_exc()
            record_failure(store, item.id, Failure(kind="error", text=text, worker=f"{owner.host} {owner.pid}"))
            return State.FAILED
    if item.parts > 1:
        assemble(store, item)
    return State.DONE


def _measure(store: Store, bench: Bench, item: Item, given: Mapping[str, bytes | memoryview]) -> None:
    if item.cell is None:
        write_reference(store, item, run_reference(bench, item, store.exists, store.read, store.put))
        return
    lines: list[str] = []
    result = run_cell(bench, item, _checked_reads(store, item, given), lines.append)
    write_cell(store, item, result, "".join(f"{line}\n" for line in lines))


def _checked_reads(store: Store, item: Item, given: Mapping[str, bytes | memoryview]) -> Callable[[str], bytes | None]:
    """Files of the reference, refused where they are not those that its manifest lists."""
    digests = read_units(store, item.group.reference)

    def read(name: str) -> bytes | None:
        # safetensors reads bytes, so what a cluster shares in memory is copied here, a document at a time.
        data = bytes(given[name]) if name in given else store.read(name)
        if data is not None and sha256_bytes(data) != digests.get(name):
            raise StoreError(
                f"{store.url}/{name} is not what the reference {item.group.reference[:12]} wrote; remove it and "
                f"references/{item.group.reference} from the store and run the matrix again"
            )
        return data

    return read
