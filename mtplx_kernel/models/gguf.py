"""Convert a llama-family GGUF file into an mlx-lm folder, keeping its quantisation.

Run as `python -m mtplx_kernel.models.gguf FILE FOLDER`: the arrays live and die in that process.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx_kernel.errors import ModelUnusable

if TYPE_CHECKING:
    import mlx.core as mx
    from tokenizers import Tokenizer

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3
_GROUP_SIZE = 32


def convert(source: Path, folder: Path) -> None:
    """Write the mlx-lm folder of a GGUF file: config, generation config, weights, tokenizer.

    Raises
    ------
    ModelUnusable
        When the file cannot be read, or is of a family or tokenizer that is not handled here.
    """
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(source), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as err:
        raise ModelUnusable(f"{source.name} is not a readable GGUF file: {err}") from err
    arrays, metadata = loaded
    values = _plain(metadata)
    for key, handled in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if values.get(key) != handled:
            raise ModelUnusable(
                f"{source.name} has {key} {values.get(key)!r}; only {handled!r} is handled"
            )
    weights = rename_weights(
        arrays, values["llama.attention.head_count"], values["llama.attention.head_count_kv"]
    )
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    _write_json(folder / "config.json", model_config(values, weights))
    _write_json(folder / "generation_config.json", _token_ids(values))
    build_tokenizer(values).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(values))


def rename_weights(
    arrays: dict[str, mx.array], query_heads: int, key_heads: int
) -> dict[str, mx.array]:
    """Give a GGUF's arrays mlx-lm's names, and its query and key rows mlx-lm's order."""
    renamed = {}
    for name, value in arrays.items():
        stem, part = name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, layer, kind = stem.split(".")
            heads = {"attn_q": query_heads, "attn_k": key_heads}.get(kind)
            if heads is not None:
                value = halves_rotary(value, heads)
            renamed[f"model.layers.{layer}.{_BLOCK_NAMES[kind]}.{part}"] = value
        elif stem in _TOP_NAMES:
            renamed[f"{_TOP_NAMES[stem]}.{part}"] = value
        else:
            raise ModelUnusable(f"the GGUF file holds {name}, which no llama has")
    return renamed


def halves_rotary(rows: mx.array, heads: int) -> mx.array:
    """Reorder projection rows from rotary pairs (2i, 2i + 1) to pairs (i, i + d/2), head by head.

    Parameters
    ----------
    rows
        Any array whose first axis has heads · d rows: weights, scales or biases.
    heads
        How many heads the rows are of; d must be even.
    """
    shape = rows.shape
    half = shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def model_config(values: dict[str, Any], weights: dict[str, mx.array]) -> dict[str, Any]:
    """The config.json of the model, with the quantisation that its arrays have."""
    bits = {
        name.removesuffix(".scales"): _bits(weights, name.removesuffix(".scales"))
        for name in weights
        if name.endswith(".scales")
    }
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": values["llama.embedding_length"],
        "num_hidden_layers": values["llama.block_count"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{values['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "max_position_embeddings": values["llama.context_length"],
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        **_token_ids(values),
    }
    if bits:
        (usual, _), *_ = Counter(bits.values()).most_common(1)
        others = {name: _scheme(count) for name, count in bits.items() if count != usual}
        config["quantization"] = {**_scheme(usual), **others}
    return config


def build_tokenizer(values: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE of the file.

    Digits stand alone, no space is put in front, and control tokens are kept whole.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def tokenizer_config(values: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer_config.json of the file: its named tokens and its chat template."""
    tokens = values["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if (token := values.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{name}_token"] = tokens[token]
    if "tokenizer.chat_template" in values:
        config["chat_template"] = values["tokenizer.chat_template"]
    return config


def _token_ids(values: dict[str, Any]) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: values.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: token for name, token in found.items() if token is not None}


def _bits(weights: dict[str, mx.array], name: str) -> int:
    """Bits a weight, from how many 32-bit words a row of so many groups takes."""
    columns = weights[f"{name}.scales"].shape[1] * _GROUP_SIZE
    return weights[f"{name}.weight"].shape[1] * 32 // columns


def _scheme(bits: int) -> dict[str, int]:
    return {"group_size": _GROUP_SIZE, "bits": bits}


def _plain(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata without arrays: numbers, strings and lists."""
    return {
        key: value.tolist() if hasattr(value, "tolist") else value
        for key, value in metadata.items()
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Convert FILE into FOLDER on the CPU; an error is one line on standard error."""
    import mlx.core as mx

    mx.set_default_device(mx.Device(mx.cpu))
    source, folder = map(Path, arguments)
    try:
        convert(source, folder)
    except ModelUnusable as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
