"""Files that are damaged, foreign or hostile: each is refused by name, and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvassay.cache import QuantizedCache
from kvassay.cache.page_pool import PagePool
from kvassay.cache.saved_cache import MAX_HEADER_NBYTES
from kvassay.core.format_names import parse_format
from kvassay.errors import KvassayError, SavedCacheError
from tests.cache.cache_states import append, calibration_for, held, new_cache, prompt, shared
from tests.cache.saved_files import TakenApart, put_together, take_apart
from tests.cache.test_operations import small_config
from tests.tiny_models import tiny_model

TEXT = "kivi-4,recent=8,sinks=3"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "cache"
    prompt(TEXT).save(path)
    return path


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "shared"
    shared(TEXT).save(path)
    return path


def refused(path: Path, message: str, **more: Any) -> None:
    """Both ways of loading refuse it, name the file, and leave a cache that was there as it was."""
    with pytest.raises(SavedCacheError, match=message) as caught:
        QuantizedCache.load(path, small_config(), **more)
    assert str(caught.value).startswith(f"{path}: ")
    cache = prompt(TEXT)
    before, state = held(cache), [layer.state for layer in cache.quantized_layers]
    with pytest.raises(SavedCacheError, match=f"{re.escape(str(path))}: "):
        cache.load_into(path)
    assert [layer.state for layer in cache.quantized_layers] == state
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(held(cache), before, strict=True))


def _require_named(error: KvassayError, path: Path) -> None:
    assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize("part", range(50))
def test_a_file_cut_anywhere_is_refused(part, file, tmp_path) -> None:
    raw = file.read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(raw[: len(raw) * part // 50])
    with pytest.raises(SavedCacheError, match=r"cut: (truncated|the safetensors header is not valid JSON)"):
        QuantizedCache.load(path, small_config())


def test_a_file_with_bytes_behind_it_is_refused(file, tmp_path) -> None:
    (tmp_path / "long").write_bytes(file.read_bytes() + b"\0")
    refused(tmp_path / "long", "bytes after the last array")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), in_header=st.booleans())
def test_any_flipped_bit_is_found(share, bit, in_header, file) -> None:
    raw = bytearray(file.read_bytes())
    length = 8 + int.from_bytes(raw[:8], "little") if in_header else len(raw)
    raw[int(share * length)] ^= 1 << bit
    path = file.with_name("flipped")
    path.write_bytes(raw)
    try:
        loaded = QuantizedCache.load(path, small_config())
    except KvassayError as error:
        _require_named(error, path)
    else:
        # Blanks of the container's own header, and nothing else, may differ without a trace.
        assert in_header
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(held(loaded), held(prompt(TEXT)), strict=True))


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths of all numbers, texts, switches and nulls, and of a first few of long lists."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))
    else:
        yield path


def changed(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value, None, int(value)]
        case int():
            return [value + 1, value - 1, -1, 1 << 39, (1 << 53) - 1, value + 0.5, str(value), None]
        case str():
            return [value[::-1], value + "x", "", "0" * 64, 7, None]
        case _:
            return [0, 1, "x", [], {}]


def every_change(header: dict[str, Any]) -> Iterator[tuple]:
    """Change one leaf of the header after the other, in place; gives the leaf's path."""
    for path in list(leaves(header)):
        place = header
        for key in path[:-1]:
            place = place[key]
        old = place[path[-1]]
        for new in changed(old):
            if type(new) is not type(old) or new != old:
                place[path[-1]] = new
                yield path
        place[path[-1]] = old


def test_a_header_that_was_changed_is_refused_whatever_the_field(file, tmp_path) -> None:
    parts = take_apart(file)
    parts.keeps_hashes = True
    path, count = tmp_path / "changed", 0
    for _ in every_change(parts.header):
        put_together(parts, path)
        with pytest.raises(SavedCacheError, match=f"{path}: "):
            QuantizedCache.load(path, small_config())
        count += 1
    assert count > 1000


def test_a_header_that_was_forged_gives_an_error_or_a_cache_that_works(file, tmp_path) -> None:
    """With digests made anew a change may be possible (a count, a policy, a token more of zeros): then all goes on."""
    # What a forger can do he could also do by forging tokens; a hash shows damage, not who wrote the file.
    parts = take_apart(file)
    path, taken = tmp_path / "forged", set()
    for field in every_change(parts.header):
        if field == ("digest",) or field[0] == "arrays":
            continue  # made anew
        put_together(parts, path)
        try:
            cache = QuantizedCache.load(path, small_config())
        except SavedCacheError as error:
            _require_named(error, path)
            continue
        assert all(torch.isfinite(side).all() for side in held(cache))
        append(cache, 1, 3)
        append(cache, 30, 4)
        taken.add(next(key for key in reversed(field) if isinstance(key, str)))
    assert taken <= {
        "recording",
        "clipped_values",
        "encoded_values",
        "revision",
        "on_clip",
        "left_padding",
        "dtype",
        "dropped",
        "padding",
        "columns",
        "start",
        "first",
        "tail_first",
    }, taken


def _set(*path: Any) -> Callable[[TakenApart], None]:
    """Put the last of `path` at the place that the others name in the header."""

    def edit(parts: TakenApart) -> None:
        place = parts.header
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]

    return edit


def _in_array(part: str, place: Any, value: Any, number: int = 0) -> Callable[[TakenApart], None]:
    def edit(parts: TakenApart) -> None:
        parts.arrays[parts.name(part, number)][place] = value

    return edit


def _page_value(pool: str, store: int, value: float) -> Callable[[TakenApart], None]:
    """The first float16 of a page of the first layer's pool of this kind."""

    def edit(parts: TakenApart) -> None:
        numbers = [
            number
            for number, each in enumerate(parts.header["layers"][0]["pools"])
            if (each["part"], each["store"]) == (pool, store)
        ]
        array = parts.arrays[f"layer0.pool{numbers[0]}.pages"]
        array[0, :2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    return edit


def _scale_nan(parts: TakenApart) -> None:
    """Channel scales of a coded page: whatever lies where, all bytes of it become 0xFF."""
    name = next(name for name in parts.arrays if name.endswith("pages"))
    parts.arrays[name][0] = 0xFF


def _drop(name: str, where: str) -> Callable[[TakenApart], None]:
    def edit(parts: TakenApart) -> None:
        full = parts.name(name)
        if where == "both":
            del parts.arrays[full], parts.table[full], parts.header["arrays"][full]
        elif where == "header":
            del parts.header["arrays"][full]
        else:
            del parts.arrays[full], parts.table[full]

    return edit


def _extra(parts: TakenApart) -> None:
    parts.arrays["layer9.pool0.pages"] = np.zeros((1, 64), np.uint8)
    parts.header["arrays"]["layer9.pool0.pages"] = "0" * 64


def _orphan_page(parts: TakenApart) -> None:
    """A page that no table names, such as one with someone else's tokens."""
    parts.header["layers"][0]["pools"][0]["pages"] += 1
    name = "layer0.pool0.pages"
    parts.arrays[name] = np.concatenate((parts.arrays[name], parts.arrays[name][:1]))


def _more_pages(parts: TakenApart) -> None:
    parts.header["layers"][0]["pools"][0]["pages"] = (1 << 31) - 1


def _long_run(parts: TakenApart) -> None:
    store = parts.header["layers"][0]["cohorts"][0]["stores"][0]
    parts.header["layers"][0]["columns"] = 1 << 39
    store["coded"] = store["runs"][0]["end"] = store["tail_first"] = (1 << 39) - 40


def _overlapping_entries(parts: TakenApart) -> None:
    parts.keeps_table = True
    first, second = list(parts.table)[:2]
    parts.table[second]["data_offsets"] = parts.table[first]["data_offsets"]


def _wrong_type(parts: TakenApart) -> None:
    parts.keeps_table = True
    parts.table[parts.name("pages")]["dtype"] = "I8"


def _wide_shape(parts: TakenApart) -> None:
    parts.keeps_table = True
    parts.table[parts.name("pages")]["shape"] = [1 << 62, 1 << 62]


STORE = ("layers", 0, "cohorts", 0, "stores", 0)
EDITS: dict[str, tuple[Callable[[TakenApart], None], str]] = {
    "a page number too high": (_in_array("run0", (0, 0), 99), r"run0\.table names page 99; pool 0 has 2 pages"),
    "a negative page number": (_in_array("run0", (0, 0), -1), r"names page -1; pool 0"),
    "pages not in order": (_in_array("tail", (slice(None), 0), [1, 0]), "in their order"),
    "one page at two places": (_in_array("run0", (0, 1), 0, 1), "(two places|in their order)"),
    "one page for two columns": (_in_array("run0", slice(None), [[0, 0], [1, 2]], 1), "for two places of a sequence"),
    "a page that no table names": (_orphan_page, r"pool 0 has 3 pages, of which tables name 2"),
    "NaN in a sink": (_page_value("sinks", 0, float("nan")), "NaN or infinity in codes"),
    "infinity in a sink of values": (_page_value("sinks", 1, float("inf")), "NaN or infinity in codes"),
    "NaN in scales": (_scale_nan, "(NaN or infinity|no token; such places are zero)"),
    "bytes in an unwritten place": (
        _in_array("layer0.pool1.pages", (-1, -1), 1),
        "hold no token; such places are zero",
    ),
    "an array missing in the container": (_drop("run0", "container"), "the container lacks array"),
    "an array missing in the header": (_drop("run0", "header"), "the header lacks array"),
    "an array missing in both": (_drop("pages", "both"), "the header lacks array"),
    "an array too many": (_extra, "which no store names"),
    "more pages than bytes": (_more_pages, r"of shape \[2147483647, \d+\]"),
    "a table of terabytes": (
        _long_run,
        "array layer0.cohort0.store0.run0.table is I32 of shape|tail|sinks|coded|columns",
    ),
    "arrays that overlap": (_overlapping_entries, "gap or overlap|takes"),
    "a container type of the same size": (_wrong_type, "is I8 of shape .*; expected U8"),
    "a shape that overflows": (_wide_shape, r"of shape \[4611686018427387904, 4611686018427387904\]"),
    "b52 another page layout": (_set("layers", 0, "pools", 0, "layout", "a" * 64), "equal sizes do not make"),
    "another page order": (_set("page_order", "kvassay.page/0"), "page_order is 'kvassay.page/0'"),
    "a newer schema": (_set("schema", "kvassay.saved-cache/2"), "schema is 'kvassay.saved-cache/2'"),
    "a newer layout version": (_set("layout_version", 2), "layout_version is '2', expected 1"),
    "a layout version that is true": (_set("layout_version", True), "layout_version is 'True'"),
    "a pool of another part": (_set(*STORE, "pools", "coded", 1), "pool 1 is for the tail pages of store 0"),
    "a pool of another store": (_set(*STORE, "pools", "coded", 3), "pool 3 is for the coded pages of store 1"),
    "a pool that is not there": (_set(*STORE, "pools", "coded", 77), "in pool 77 of"),
    "no pages": (_set(*STORE, "pools", None), "holds 76 tokens and no pages"),
    "rows twice": (_set("layers", 0, "cohorts", 0, "rows", [0, 0]), "each row of the batch once"),
    "rows out of order": (_set("layers", 0, "cohorts", 0, "rows", [1, 0]), "each row of the batch once"),
    "other numbers of rows": (_set("layers", 1, "cohorts", 0, "rows", [0]), r"have \[1, 2\] rows|of shape"),
    "more coded tokens than there are": (_set(*STORE, "coded", 75), "75 coded tokens"),
    "dropped tokens in a full layer": (_set(*STORE, "dropped", 32), "the next query would still see"),
    "a run with a gap": (_set(*STORE, "runs", 0, "first", 1), "codes begin with token 1"),
    "a run that ends early": (_set(*STORE, "runs", 0, "end", 32), "codes end with token 32, expected 64"),
    "a tail with a gap": (_set(*STORE, "tail_first", 70), "the tail begins with token 70"),
    "no tail": (_set(*STORE, "tail_first", None), "neither coded nor in a tail"),
    "a store too few": (lambda parts: parts.header["layers"][0]["cohorts"][0]["stores"].pop(), "has 1 stores"),
    "a layer too few": (lambda parts: parts.header["layers"].pop(), "lists 1 layers, its geometry 2"),
    "a field too many": (_set("comment", "x"), "header field comment"),
    "tokens as a float": (_set("layers", 0, "columns", 76.5), r"header field layers\.0\.columns"),
    "a format that is none": (_set("format", {"keys": {}}), "header field"),
    "static scales that were not there": (_set("layers", 0, "static", ["a" * 64, None]), "static scales or means"),
    "a key transform that was not there": (_set("layers", 0, "key_transform", "a" * 64), "key bias or rotary"),
    "geometry of no model": (_set("geometry", "layers", []), "header field layers"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_b16_b25_b52_a_hostile_file_with_hashes_that_fit_is_refused_by_name(edit, file, tmp_path) -> None:
    change, message = EDITS[edit]
    parts = take_apart(file)
    change(parts)
    put_together(parts, tmp_path / "hostile")
    refused(tmp_path / "hostile", message)


def test_an_untouched_file_passes_the_same_road(file, tmp_path) -> None:
    put_together(take_apart(file), tmp_path / "same")
    loaded = QuantizedCache.load(tmp_path / "same", small_config())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(held(loaded), held(prompt(TEXT)), strict=True))


@pytest.mark.parametrize("edit", ["more pages than bytes", "a table of terabytes", "a shape that overflows"])
def test_a_file_that_declares_more_than_it_holds_takes_no_memory(edit, file, tmp_path, monkeypatch) -> None:
    parts = take_apart(file)
    EDITS[edit][0](parts)
    put_together(parts, tmp_path / "huge")

    def no_memory(self, count) -> None:
        raise AssertionError(f"{count} pages were allocated")

    monkeypatch.setattr(PagePool, "_add_slab", no_memory)
    with pytest.raises(SavedCacheError):
        QuantizedCache.load(tmp_path / "huge", small_config())


def test_a_header_of_gigabytes_is_not_read(tmp_path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.write((3 << 30).to_bytes(8, "little"))
        file.truncate(4 << 30)  # takes no room on the disk
    refused(path, f"a header of {3 << 30} bytes; at most {MAX_HEADER_NBYTES} are read")
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    refused(path, "truncated")


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', "[" * 10000, "[]", "{", "\\xff", '{"__metadata__":{}}'])
def test_a_container_header_that_is_no_plain_object_is_refused(text, tmp_path) -> None:
    raw = text.encode()
    (tmp_path / "odd").write_bytes(len(raw).to_bytes(8, "little") + raw)
    refused(tmp_path / "odd", "odd: ")


def test_one_page_for_two_rows_is_sharing_and_for_two_places_is_refused(shared_file, tmp_path) -> None:
    parts = take_apart(shared_file)
    cache = QuantizedCache.load(shared_file, small_config())
    assert cache.batch_size == 4
    sinks = [store.parts.sinks for store in cache.quantized_layers[0].stores if store.parts is not None]
    assert all(rows.pool.references(np.arange(rows.pool.num_pages)).tolist() == [4] for rows in sinks)
    run = next(name for name, array in parts.arrays.items() if "layer1" in name and "run" in name)
    parts.arrays[run][:] = parts.arrays[run][::-1]
    put_together(parts, tmp_path / "overlap")
    with pytest.raises(SavedCacheError, match=r"in their order|of which tables name"):
        QuantizedCache.load(tmp_path / "overlap", small_config())


PAIRS = [
    ("int8-token-head", "fp8-e4m3-token-head"),
    ("fp8-e4m3", "fp8-e4m3fnuz"),
    ("fp8-e5m2", "fp8-e5m2fnuz"),
    ("f16", "bf16"),
    ("kivi-4,recent=8", "kivi-4,recent=8,exact=bf16"),
    ("kv=int4:group32/had/seed=1", "kv=int4:group32/had/seed=2"),
    ("kv=int4:group32/had/seed=1", "kv=int4:group32"),
    ("k=int8:token-head,v=fp8-e4m3:token-head", "k=fp8-e4m3:token-head,v=int8:token-head"),
    ("kv=int4:group32", "kv=int4:group32/sym"),
    ("q4_0", "iq4_nl"),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_r8_b16_b17_a_format_of_equal_size_is_refused_by_name(theirs, ours, tmp_path) -> None:
    """Codes of another type, another rotation, another float: equal bytes, other numbers."""
    path = tmp_path / "theirs"
    cache = new_cache(theirs)
    append(cache, 40, 1, rows=1)
    cache.save(path)
    names = [parse_format(text).name for text in (theirs, ours)]
    message = re.escape(names[0]) + ".*" + re.escape(names[1])
    with pytest.raises(SavedCacheError, match=message):
        QuantizedCache.load(path, small_config(), kv_format=ours)
    other = new_cache(ours)
    append(other, 7, 2, rows=1)
    before = held(other)
    with pytest.raises(SavedCacheError, match=message):
        other.load_into(path)
    assert all(torch.equal(left, right) for left, right in zip(held(other), before, strict=True))
    assert QuantizedCache.load(path, small_config(), kv_format=theirs).kv_format == parse_format(theirs)


@pytest.mark.parametrize(("theirs", "ours"), [PAIRS[0], PAIRS[1], PAIRS[3]])
def test_b52_pages_keep_their_own_layout_under_a_forged_format(theirs, ours, tmp_path) -> None:
    """The format's name is changed and hashed anew; the id of the pages still tells."""
    for name, text in (("theirs", theirs), ("ours", ours)):
        cache = new_cache(text)
        append(cache, 40, 1, rows=1)
        cache.save(tmp_path / name)
    parts, donor = take_apart(tmp_path / "theirs"), take_apart(tmp_path / "ours")
    assert [array.shape for array in parts.arrays.values()] == [array.shape for array in donor.arrays.values()]
    for field in ("format", "format_digest"):
        parts.header[field] = donor.header[field]
    put_together(parts, tmp_path / "forged")
    with pytest.raises(SavedCacheError, match="equal sizes do not make them readable"):
        QuantizedCache.load(tmp_path / "forged", small_config())


def _config(**changes: Any):
    config = small_config()
    return type(config)(**{**config.to_dict(), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "the file holds 2 layers of a gemma3_text model, this model has 3",
        ),
        ({"num_key_value_heads": 1}, "layer 0 of the file has kv_heads 2, this model 1"),
        ({"head_dim": 128}, "layer 0 of the file has head_dim 64, this model 128"),
        ({"sliding_window": 41}, "layer 1 of the file has sliding_window 40, this model 41"),
        ({"max_position_embeddings": 77}, "a context of"),
        ({"rms_norm_eps": 1e-3}, "equal shapes, other arithmetic"),
    ],
)
def test_b52_another_model_is_refused_by_name(changes, message, file) -> None:
    with pytest.raises(SavedCacheError, match=message):
        QuantizedCache.load(file, _config(**changes))


def test_b52_one_row_of_two_heads_is_not_two_rows_of_one_head(tmp_path) -> None:
    """Equal elements, equal bytes of plain floats: only what is stored beside them tells the two apart."""
    one_head = _config(num_key_value_heads=1, num_attention_heads=2)
    cache = QuantizedCache(one_head, "f16")
    for layer in range(2):
        cache.update(torch.randn(2, 1, 20, 64), torch.randn(2, 1, 20, 64), layer)
    cache.save(tmp_path / "two rows")
    two_heads = new_cache("f16")
    append(two_heads, 20, 1, rows=1)
    two_heads.save(tmp_path / "two heads")
    sizes = [
        sum(array.nbytes for name, array in take_apart(tmp_path / name_).arrays.items() if name.endswith("pages"))
        for name_ in ("two rows", "two heads")
    ]
    assert sizes[0] == sizes[1]
    with pytest.raises(SavedCacheError, match="kv_heads 1, this model 2"):
        QuantizedCache.load(tmp_path / "two rows", small_config())


def test_switches_of_a_run_do_not_make_another_model(file) -> None:
    """What a process sets on its config for itself: token ids, caching, names, the attention it runs."""
    config = _config(pad_token_id=3, use_cache=False, transformers_version="9.9")
    config._attn_implementation = "eager"
    config._name_or_path = "elsewhere"
    assert QuantizedCache.load(file, config).get_seq_length() == 76


def test_a_revision_that_is_asked_for_must_be_that_of_the_file(file, tmp_path) -> None:
    with pytest.raises(SavedCacheError, match="revision none, and 'abc' was asked for"):
        QuantizedCache.load(file, small_config(), revision="abc")
    prompt(TEXT).save(tmp_path / "named", revision="abc")
    with pytest.raises(SavedCacheError, match="revision 'abc', and 'abd' was asked for"):
        QuantizedCache.load(tmp_path / "named", small_config(), revision="abd")
    assert QuantizedCache.load(tmp_path / "named", small_config(), revision="abc").get_seq_length() == 76
    with pytest.raises(SavedCacheError, match="empty: header field revision"):
        prompt(TEXT).save(tmp_path / "empty", revision="")


@pytest.mark.parametrize("text", ["int8-tensor", "nvfp4-static", "kv=int4:group32/mean"])
def test_b16_b25_other_static_scales_are_refused(text, tmp_path) -> None:
    """One digit of one scale is enough; where it came from is not."""
    path = tmp_path / "cache"
    cache = new_cache(text)
    append(cache, 30, 1, rows=1)
    cache.save(path)
    given = calibration_for(cache.kv_format)
    assert given is not None
    renamed = {layer: tuple(tuple(_renamed(side) for side in sides) for sides in each) for layer, each in given.items()}
    assert QuantizedCache.load(path, small_config(), calibration=renamed).get_seq_length() == 30
    for array in given[1][0][1].parameters.values():
        array.flatten()[0] *= 1.001
    with pytest.raises(SavedCacheError, match="static scales or means of layer 1"):
        QuantizedCache.load(path, small_config(), calibration=given)
    with pytest.raises(SavedCacheError, match=r"cache: .*static scales or means"):
        QuantizedCache.load(path, small_config())
    given[0][0][0].parameters[next(iter(given[0][0][0].parameters))].fill_(float("nan"))
    with pytest.raises(SavedCacheError, match=r"cache: .*NaN"):
        QuantizedCache.load(path, small_config(), calibration=given)


def _renamed(side):
    return None if side is None else side._replace(source="calibrated elsewhere")


def test_another_key_bias_is_refused(tmp_path) -> None:
    model = tiny_model("qwen2")
    cache = QuantizedCache.for_model(model, "int4-g32,keybias=removed")
    with torch.no_grad():
        model(input_ids=torch.arange(3, 40)[None], cache=cache)
    cache.save(tmp_path / "cache")
    assert QuantizedCache.load(tmp_path / "cache", model).get_seq_length() == 37
    with pytest.raises(SavedCacheError, match=r"cache: .*needs the model's key bias"):
        QuantizedCache.load(tmp_path / "cache", model.config)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.bias[0] += 1e-3
    with pytest.raises(SavedCacheError, match="key bias or rotary embedding of layer 1"):
        QuantizedCache.load(tmp_path / "cache", model)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.9999])
def test_a_load_that_fails_late_changes_nothing(share, file, tmp_path) -> None:
    """The last array is damaged: all others were read by then."""
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * share)] ^= 1
    (tmp_path / "damaged").write_bytes(raw)
    refused(tmp_path / "damaged", "SHA-256")


def test_load_into_replaces_everything(file) -> None:
    cache = new_cache(TEXT, [0, 9, 0])
    append(cache, 50, 8, rows=3)
    cache.load_into(file)
    expected = prompt(TEXT)
    assert (cache.get_seq_length(), cache.batch_size, cache.left_padding) == (76, 2, (0, 0))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(held(cache), held(expected), strict=True))
    append(cache, 1, 4)
    append(expected, 1, 4)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(held(cache), held(expected), strict=True))
