"""A tiny llama as a GGUF file, written byte by byte, with the dense weights that it stands for."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, np.dtype[Any]]

HIDDEN, LAYERS, INNER, QUERY_HEADS, KEY_HEADS, CONTEXT, THETA = 64, 2, 96, 2, 1, 128, 10000.0
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


@dataclass(frozen=True)
class TinyGguf:
    """The file, and by GGUF name the dense values it stores, in GGUF's own row order."""

    path: Path
    dense: dict[str, Array]
    tokens: list[str]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def q4_1(rng: np.random.Generator, rows: int, columns: int) -> tuple[bytes, Array]:
    """Random 4-bit blocks of 32: a scale, a minimum, and 16 bytes of low and high halves."""
    codes = rng.integers(0, 16, (rows, columns // 32, 32), dtype=np.uint8)
    scale = rng.uniform(0.005, 0.02, (rows, columns // 32)).astype(np.float16)
    least = rng.uniform(-0.2, 0.0, (rows, columns // 32)).astype(np.float16)
    packed = codes[..., :16] | codes[..., 16:] << 4
    head = np.stack([scale, least], axis=-1).view(np.uint8)
    data = np.concatenate([head, packed], axis=-1).tobytes()
    dense = codes * scale[..., None].astype(np.float64) + least[..., None].astype(np.float64)
    return data, dense.reshape(rows, columns)


def q8_0(rng: np.random.Generator, rows: int, columns: int) -> tuple[bytes, Array]:
    """Random 8-bit blocks of 32: a scale and 32 signed bytes."""
    codes = rng.integers(-127, 128, (rows, columns // 32, 32), dtype=np.int8)
    scale = rng.uniform(0.002, 0.01, (rows, columns // 32)).astype(np.float16)
    data = np.concatenate([scale[..., None].view(np.uint8), codes.view(np.uint8)], axis=-1)
    dense = codes * scale[..., None].astype(np.float64)
    return data.tobytes(), dense.reshape(rows, columns)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(key: str, value: object) -> bytes:
    """One metadata entry: an integer, a float, a string, or a list of strings or integers."""
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        items = b"".join(text(v) if kind == 8 else struct.pack("<i", v) for v in value)
        return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + items
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    code, kind = ("<f", 6) if isinstance(value, float) else ("<I", 4)
    return text(key) + struct.pack("<I", kind) + struct.pack(code, value)


def metadata(tokens: list[str], changes: dict[str, object]) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": QUERY_HEADS,
        "llama.attention.head_count_kv": KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": CONTEXT,
        "llama.rope.freq_base": THETA,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
        **changes,
    }


def write_tiny_gguf(path: Path, seed: int = 0, **changes: object) -> TinyGguf:
    """Write the model; `changes` are metadata entries to replace, with `__` for a dot."""
    rng = np.random.default_rng(seed)
    tokens = [*CONTROL, *byte_alphabet(), *(m.replace(" ", "") for m in MERGES)]
    head = HIDDEN // QUERY_HEADS
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KEY_HEADS * head, HIDDEN),
            "attn_v": (KEY_HEADS * head, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            shapes[f"blk.{layer}.{name}"] = shape
    infos, body, dense = b"", b"", {}
    for stem, shape in shapes.items():
        if len(shape) == 1:
            kind, values = 0, rng.uniform(0.5, 1.5, shape).astype(np.float32)
            data: bytes = values.tobytes()
        else:
            kind, (data, values) = (
                (8, q8_0(rng, *shape)) if stem == "token_embd" else (3, q4_1(rng, *shape))
            )
        dense[stem] = values.astype(np.float64)
        infos += text(f"{stem}.weight") + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % 32)
    entries = metadata(tokens, {k.replace("__", "."): v for k, v in changes.items()})
    start = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(entries))
    start += b"".join(field(key, value) for key, value in entries.items()) + infos
    path.write_bytes(start + b"\0" * (-len(start) % 32) + body)
    return TinyGguf(path, dense, tokens)


@pytest.fixture(scope="session")
def make_tiny_gguf() -> Callable[..., TinyGguf]:
    return write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
