"""Conversion of a GGUF file: the same function of the ids, the same ids of a text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import regex
from tokenizers import Tokenizer

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.models.catalog import resolve
from mtplx_kernel.models.gguf import convert, halves_rotary

HEADS, KEY_HEADS, THETA, EPS = 2, 1, 10000.0, 1e-5


@pytest.fixture(scope="module")
def tiny_folder(tiny_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "tiny"
    convert(tiny_gguf.path, folder)
    return folder


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return resolve("smollm2-135m", progress=False).path


def rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rotate_pairs(x: Any) -> Any:
    """Rotary embedding of (heads, tokens, d) as GGUF orders it: values 2i and 2i + 1 are a pair."""
    tokens, width = x.shape[1:]
    angle = np.arange(tokens)[:, None] * THETA ** (-np.arange(0, width, 2) / width)
    first, second = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = first * np.cos(angle) - second * np.sin(angle)
    rotated[..., 1::2] = first * np.sin(angle) + second * np.cos(angle)
    return rotated


def llama(dense: dict[str, Any], ids: list[int]) -> Any:
    """Logits in float64, straight from the GGUF's values in their own order."""
    x = dense["token_embd"][ids]
    count = len(ids)
    layers = sum(name.endswith("attn_q") for name in dense)
    for layer in range(layers):
        w = {k.split(".")[2]: v for k, v in dense.items() if k.startswith(f"blk.{layer}.")}
        h = rms_norm(x, w["attn_norm"])
        q = rotate_pairs((h @ w["attn_q"].T).reshape(count, HEADS, -1).swapaxes(0, 1))
        k = rotate_pairs((h @ w["attn_k"].T).reshape(count, KEY_HEADS, -1).swapaxes(0, 1))
        v = (h @ w["attn_v"].T).reshape(count, KEY_HEADS, -1).swapaxes(0, 1)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + (shares @ v).swapaxes(0, 1).reshape(count, -1) @ w["attn_output"].T
        h = rms_norm(x, w["ffn_norm"])
        gate = h @ w["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return rms_norm(x, dense["output_norm"]) @ dense["token_embd"].T


def test_the_converted_model_is_the_same_function(tiny_gguf: Any, tiny_folder: Path) -> None:
    from mlx_lm.utils import dequantize_model, load_model

    model, _ = load_model(tiny_folder)
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    ids = [5, 200, 17, 17, 90, 3, 260]
    ours = np.array(model(mx.array([ids]))[0], dtype=np.float64)
    theirs = llama(tiny_gguf.dense, ids)
    assert np.abs(theirs).max() > 1
    assert np.abs(ours - theirs).max() < 1e-3


def test_every_weight_keeps_its_value(tiny_gguf: Any, tiny_folder: Path) -> None:
    weights: Any = mx.load(str(tiny_folder / "model.safetensors"))

    def dense(name: str, bits: int) -> Any:
        scales, biases = (
            weights[f"{name}.{part}"].astype(mx.float32) for part in ("scales", "biases")
        )
        return np.array(mx.dequantize(weights[f"{name}.weight"], scales, biases, 32, bits))

    for theirs, ours, bits in (
        ("token_embd", "model.embed_tokens", 8),
        ("blk.1.attn_v", "model.layers.1.self_attn.v_proj", 4),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj", 4),
    ):
        assert np.abs(dense(ours, bits) - tiny_gguf.dense[theirs]).max() < 1e-6
    norm = np.array(weights["model.layers.0.input_layernorm.weight"])
    assert (norm == tiny_gguf.dense["blk.0.attn_norm"]).all()


def test_rotary_rows_go_from_pairs_to_halves_head_by_head() -> None:
    rows = mx.arange(12)  # two heads of six rows
    assert halves_rotary(rows, 2).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_config_says_what_the_file_holds(tiny_folder: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 10000.0
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2
    assert config["vocab_size"] == 264
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    generation = json.loads((tiny_folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_tiny_tokenizer_merges_as_written(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    pieces = tokenizer.encode("hello world 42<|im_end|>").tokens
    assert pieces == ["hello", "Ġw", "o", "r", "l", "d", "Ġ", "4", "2", "<|im_end|>"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general__architecture": "mamba"}, "'mamba'"),
        ({"tokenizer__ggml__pre": "llama-bpe"}, "'llama-bpe'"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model"),
    ],
)
def test_other_kinds_are_refused(
    make_tiny_gguf: Callable[..., Any], tmp_path: Path, change: dict[str, str], named: str
) -> None:
    tiny = make_tiny_gguf(tmp_path / "other.gguf", **change)
    with pytest.raises(ModelUnusable, match=named):
        convert(tiny.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_file_that_is_no_gguf_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    done = subprocess.run(
        [sys.executable, "-m", "mtplx_kernel.models.gguf", str(bad), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bad.gguf is not a readable GGUF file: ")
    assert done.stderr.count("\n") == 1


TEXTS = [
    "Why is the sky blue?",
    "  two spaces, a tab\tand\n\nblank lines\r\n",
    "naïve café – “quotes” … ﬁ",
    "12345 + 67.89 = ½ ² ٣ Ⅷ",
    "日本語のテキスト、한국어, العربية, עברית, हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b\ufeff\x00\x7f",
    "def f(x):\n    return x**2  # it's we'll I'd 'S\n",
    "a" * 50 + " " * 30,
    "",
]


def reference_ids(folder: Path, text: str) -> list[int]:
    """Byte-level BPE written out plainly: split, map bytes, merge the best-ranked pair."""
    content = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocabulary, merges = content["vocab"], [tuple(m) for m in content["merges"]]
    rank = {pair: i for i, pair in enumerate(merges)}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    words = regex.compile(
        r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )
    ids = []
    for part in regex.split(r"(\p{Nd}|\p{Nl}|\p{No})", text):
        for word in words.findall(part):
            pieces = [alphabet[b] for b in word.encode()]
            while pairs := [p for p in pairwise(pieces) if p in rank]:
                best = min(pairs, key=rank.__getitem__)
                at = list(pairwise(pieces)).index(best)
                pieces[at : at + 2] = ["".join(best)]
            ids += [vocabulary[piece] for piece in pieces]
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_ids_equal_a_plain_bpe_and_come_back_as_text(smollm2: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == reference_ids(smollm2, text)
    assert tokenizer.decode(ids) == text


def test_smollm2_chat_prompt(smollm2: Path) -> None:
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(smollm2)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U 10"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert " ".join(tokenizer.convert_ids_to_tokens(ids)) == (
        "<|im_start|> system Ċ S <|im_end|> Ċ <|im_start|> user Ċ U Ġ 1 0 <|im_end|> Ċ"
        " <|im_start|> ass istant Ċ"
    )
    assert [ids[0], ids[4]] == [1, 2]
    assert tokenizer.eos_token_ids == {2}


def test_smollm2_knows_a_capital_through_plain_mlx_lm(smollm2: Path) -> None:
    code = (
        "import sys, mlx.core as mx\n"
        "from mtplx_kernel.models import blas\n"
        "blas.ensure()\n"
        "from mlx_lm import generate, load\n"
        "from mlx_lm.utils import dequantize_model\n"
        "model, tokenizer = load(sys.argv[1])\n"
        "model = dequantize_model(model)\n"
        "model.set_dtype(mx.float32)\n"
        "print(generate(model, tokenizer, 'The capital of France is', max_tokens=2))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "MTPLX_KERNEL_BLAS"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "Paris."
