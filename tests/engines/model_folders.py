"""Tiny models on disk: a transformers folder and a GGUF file, each with a small byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

SENTENCES = [
    "The river rises in the hills and runs past the old mill to the sea.",
    "A clerk counted 1234 sacks of grain, and wrote 5678 in the book.",
    "apple: 4821\nriver: 9034\nstone: 1177\n",
]


def byte_tokenizer(*, bos: bool = False, vocabulary: int = 320) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that knows every byte; with `bos` it begins each text with `<s>`, as Gemma does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def llama_config(**changes: Any) -> LlamaConfig:
    fields: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**fields, **changes})


def write_folder(folder: Path, config: Any | None = None, *, seed: int = 0, shard: str = "50GB") -> Path:
    """A transformers folder with random weights and the byte tokenizer."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config or llama_config())
    model.save_pretrained(folder, max_shard_size=shard)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(path: Path, *, seed: int = 0, layers: int = 2, bos: bool = False) -> Path:
    """A llama GGUF file with random float32 tensors, 4 query heads, 2 KV heads, head size 8.

    `bos` is what its header says of texts: whether they begin with `<s>`.
    """
    tokenizer = byte_tokenizer()
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    width, inner, kv_width = 32, 48, 16
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<s>", "</s>") else 1 for token in tokens])
    writer.add_token_merges(_merges(tokenizer))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(bos)
    random = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    add("token_embd.weight", len(tokens), width)
    add("output.weight", len(tokens), width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        prefix = f"blk.{layer}"
        writer.add_tensor(f"{prefix}.attn_norm.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{prefix}.ffn_norm.weight", np.ones(width, np.float32))
        add(f"{prefix}.attn_q.weight", width, width)
        add(f"{prefix}.attn_k.weight", kv_width, width)
        add(f"{prefix}.attn_v.weight", kv_width, width)
        add(f"{prefix}.attn_output.weight", width, width)
        add(f"{prefix}.ffn_gate.weight", inner, width)
        add(f"{prefix}.ffn_up.weight", inner, width)
        add(f"{prefix}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    import json

    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
