"""Every parser of files that a stranger may have made: a valid file, how it is mutated, and the call that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from benchmarks.fuzz.mutations import Mutation, byte_mutations, container_mutations, json_mutations, line_mutations


class Parser(NamedTuple):
    seed: Callable[[Path], Path]
    """Writes the valid input into an empty folder, and returns the file of it that is mutated."""
    mutations: Callable[[], st.SearchStrategy[Mutation]]
    read: Callable[[Path], Any]
    """Reads the input; given the file that was mutated."""
    refit: Callable[[Path], None] | None = None
    """Makes hashes fit after a mutation, so that what lies behind them is reached; given the file."""


def json_or_bytes() -> st.SearchStrategy[Mutation]:
    return st.one_of(json_mutations(), json_mutations(), byte_mutations())


def lines_or_bytes() -> st.SearchStrategy[Mutation]:
    return st.one_of(line_mutations(), line_mutations(), byte_mutations())


def _pack(name: str) -> Callable[[Path], Path]:
    def seed(folder: Path) -> Path:
        from tests.pack.sample_pack import write_sample

        write_sample(folder / "pack")
        return folder / "pack" / name

    return seed


def _pack_of(file: Path) -> Path:
    return next(parent for parent in file.parents if parent.name == "pack")


def _verify(file: Path) -> Any:
    from kvassay.pack.verify import UNFORESEEN, verify_pack

    verification = verify_pack(_pack_of(file))
    odd = [check.sentence for check in verification.checks if UNFORESEEN in check.sentence]
    return odd or verification.passed


def _refit_pack(file: Path) -> None:
    from tests.pack.tampering import rehash

    if file.name != "manifest.json":
        rehash(_pack_of(file))


def _signed(folder: Path) -> Path:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from kvassay.pack.signing import SIGNATURES_NAME, sign_folder

    _pack("manifest.json")(folder)
    sign_folder(folder / "pack", Ed25519PrivateKey.from_private_bytes(bytes(32)))
    return folder / "pack" / SIGNATURES_NAME


def _signatures(file: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from kvassay.pack.signing import signature_checks

    key = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    return [check.passed for check in signature_checks(_pack_of(file), "0" * 64, [key])]


def _contract(folder: Path) -> Path:
    from tests.pack.sample_pack import CONTRACT_TOML

    more = "[free_running.diverged]\nmax_rate = 0.5\n[numeric.output_relative]\nmax = 1.0\n"
    more += "[bytes]\npeak_transient_max = 1e9\n"
    (folder / "contract.toml").write_text(CONTRACT_TOML + more)
    return folder / "contract.toml"


def _read_contract(file: Path) -> Any:
    from kvassay.core.contract import load_contract

    return load_contract(file).sha256


def _format_names(folder: Path) -> Path:
    text = "k=int4:channel32,v=int4:group64/had/seed=7,recent=16,sinks=4,skip=1,exact=bf16,@0+29=int8:token-head"
    text += ",@2h1.k=f16"
    (folder / "format.txt").write_text(text)
    return folder / "format.txt"


def _read_format(file: Path) -> Any:
    from kvassay.core.format_names import parse_format

    return parse_format(file.read_bytes().decode("utf-8", "replace")).digest


def _packed(folder: Path) -> Path:
    import torch

    import kvassay

    rng = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 1, 2, 70, 64, generator=rng)
    kvassay.format("kivi-4,recent=8").encode(k, v).save(folder / "packed")
    return folder / "packed"


def _read_packed(file: Path) -> Any:
    import kvassay

    return kvassay.load_packed(file).nbytes


def _refit_packed(file: Path) -> None:
    from benchmarks.fuzz.refit import refit_container

    refit_container(file, "kvassay.packed_kv", lambda entry: entry["sha256"], "sha256")


def _saved(folder: Path) -> Path:
    from tests.cache.cache_states import prompt

    prompt("kivi-4,recent=8,sinks=3").save(folder / "saved")
    return folder / "saved"


def _read_saved(file: Path) -> Any:
    from tests.cache.test_operations import small_config

    from kvassay.cache import QuantizedCache

    return QuantizedCache.load(file, small_config()).get_seq_length()


def _refit_saved(file: Path) -> None:
    from benchmarks.fuzz.refit import refit_container

    refit_container(file, "kvassay.saved_cache", lambda entry: entry, None)


def _prefix(folder: Path) -> Path:
    from tests.cache.prefix_cases import TOKENS, filled_cache, identity_of

    from kvassay.cache import PrefixStore

    cache = filled_cache()
    PrefixStore(folder=folder / "store").put(cache, range(TOKENS), identity_of(cache))
    return sorted((folder / "store").glob("*.safetensors"))[0]


def _read_prefix(file: Path) -> Any:
    from tests.cache.prefix_cases import TOKENS, empty_cache, filled_cache, identity_of

    from kvassay.cache import PrefixStore

    return PrefixStore(folder=file.parent).lookup(range(TOKENS), identity_of(filled_cache()), empty_cache()).tokens


def _gguf(folder: Path) -> Path:
    from tests.hostile.test_gguf_headers import ARRAY, BOOL, GOOD, STRING, U32, array, header, text

    more = [
        ("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, text("a") + text("b") + text("c"))),
        ("llama.attention.sliding_window_pattern", ARRAY, array(BOOL, 2, b"\1\0")),
        ("llama.attention.sliding_window", U32, 64),
        ("general.name", STRING, "small"),
    ]
    (folder / "model.gguf").write_bytes(header([*((name, *entry) for name, entry in GOOD.items()), *more]))
    return folder / "model.gguf"


def _read_gguf(file: Path) -> Any:
    from kvassay.core.gguf_header import geometry_from_gguf

    return geometry_from_gguf(file).query_heads


def _config(folder: Path) -> Path:
    from tests.cache.test_operations import small_config

    (folder / "config.json").write_text(json.dumps(small_config().to_dict()))
    return folder / "config.json"


def _read_config(file: Path) -> Any:
    from kvassay.core.format_names import parse_format
    from kvassay.core.geometry import geometry_from_config
    from kvassay.core.ledger import predict_ledger
    from kvassay.core.model_source import read_config

    return predict_ledger(geometry_from_config(read_config(file.parent)), parse_format("f16"), 64).persistent_nbytes


def _lm_eval(folder: Path) -> Path:
    source = Path(__file__).parents[2] / "tests/golden/suite_logs/samples_words_choice_f32.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    (folder / "samples_words_choice_f32.jsonl").write_bytes(lines[0])
    return folder / "samples_words_choice_f32.jsonl"


def _inspect(folder: Path) -> Path:
    return Path(shutil.copy(Path(__file__).parents[2] / "tests/golden/suite_logs/inspect_sums.json", folder))


def _read_log(file: Path) -> Any:
    from kvassay.pack.suite_logs import Choice, read_suite_log

    choice = Choice("sums", "match", None) if file.suffix == ".json" else Choice("words_choice", "acc", None)
    return len(read_suite_log(file, choice).items)


def _scales(name: str) -> Callable[[Path], Path]:
    def seed(folder: Path) -> Path:
        from tests.hostile.test_scale_files import NAMES, checkpoint

        checkpoint(folder, index=dict.fromkeys(NAMES, "model.safetensors"))
        return folder / name

    return seed


def _read_scales(file: Path) -> Any:
    from kvassay.formats.checkpoint_inventory import scale_inventory

    return len(scale_inventory(file.parent).tensors)


PARSERS: dict[str, Parser] = {
    "manifest": Parser(_pack("manifest.json"), json_or_bytes, _verify),
    **{
        name: Parser(_pack(f"{name}.json"), json_or_bytes, _verify, _refit_pack)
        for name in ("contract", "arms", "verdicts", "ledgers", "subject", "plan")
    },
    **{
        f"rows-{name}": Parser(_pack(f"rows/{name}.parquet"), byte_mutations, _verify, _refit_pack)
        for name in ("tokens", "items", "tensors")
    },
    "signatures": Parser(_signed, json_or_bytes, _signatures),
    "contract-toml": Parser(_contract, lines_or_bytes, _read_contract),
    "format-name": Parser(_format_names, byte_mutations, _read_format),
    "packed-kv": Parser(_packed, container_mutations, _read_packed),
    "packed-kv-refit": Parser(_packed, container_mutations, _read_packed, _refit_packed),
    "saved-cache": Parser(_saved, container_mutations, _read_saved),
    "saved-cache-refit": Parser(_saved, container_mutations, _read_saved, _refit_saved),
    "prefix-block": Parser(_prefix, container_mutations, _read_prefix),
    "gguf": Parser(_gguf, byte_mutations, _read_gguf),
    "config": Parser(_config, json_or_bytes, _read_config),
    "lm-eval-log": Parser(_lm_eval, json_or_bytes, _read_log),
    "inspect-log": Parser(_inspect, json_or_bytes, _read_log),
    "scale-config": Parser(_scales("config.json"), json_or_bytes, _read_scales),
    "scale-index": Parser(_scales("model.safetensors.index.json"), json_or_bytes, _read_scales),
    "scale-tensors": Parser(_scales("model.safetensors"), container_mutations, _read_scales),
}
