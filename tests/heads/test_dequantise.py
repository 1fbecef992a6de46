"""fp8 weights and their scales, for blocks that do not divide the weight, and in a head."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.dequantise import without_fp8
from tests.heads.agreement import assert_follows, parts
from tests.heads.oracle import mimo_v2_flash
from tests.heads.published import Tensors, open_head, save

Array = NDArray[Any]


def e4m3(codes: Array) -> Array:
    """The numbers of 8-bit codes: sign, four bits of exponent, three of fraction."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, fraction = (codes >> 3) & 0xF, codes & 0x7
    normal = (1 + fraction / 8) * 2.0 ** (exponent.astype(int) - 7)
    return sign * np.where(exponent == 0, fraction / 8 * 2.0**-6, normal)


def rounded(values: Array) -> Array:
    """To bfloat16, which the scaled weights are kept in."""
    return np.array(mx.array(values.astype(np.float32)).astype(mx.bfloat16).astype(mx.float32))


def random_codes(shape: tuple[int, ...], seed: int = 0) -> Array:
    codes = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return np.where((codes & 0x7F) == 0x7F, np.uint8(0), codes)  # that code is not a number


@pytest.mark.parametrize("lead", [(), (3,)])
def test_blocks_that_do_not_divide_the_weight(lead: tuple[int, ...]) -> None:
    codes = random_codes((*lead, 200, 300))
    scales = np.random.default_rng(1).uniform(0.5, 2, (*lead, 2, 3)).astype(np.float32)
    weights = {"a.weight": mx.array(codes), "a.weight_scale_inv": mx.array(scales)}
    found = without_fp8(weights | {"b.weight": mx.ones((2,))}, {})
    assert found.keys() == {"a.weight", "b.weight"}
    assert found["a.weight"].dtype == mx.bfloat16
    row, column = np.arange(200) // 128, np.arange(300) // 128
    expected = rounded(e4m3(codes) * scales[..., row[:, None], column])
    np.testing.assert_array_equal(np.array(found["a.weight"].astype(mx.float32)), expected)


@pytest.mark.parametrize("shape", [(), (5,), (5, 1)])
def test_a_scale_for_each_row_or_for_all(shape: tuple[int, ...]) -> None:
    codes = random_codes((5, 8))
    scales = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
    weights = {"a.weight": mx.array(codes), "a.weight_scale": mx.array(scales)}
    found = without_fp8(weights, {})["a.weight"].astype(mx.float32)
    whole = scales if shape == () else scales.reshape(5, 1)
    np.testing.assert_array_equal(np.array(found), rounded(e4m3(codes) * whole))


@pytest.mark.parametrize(("size", "count"), [((200, 300), (4, 5)), ((64, 64), (2, 1))])
def test_the_number_of_scales_tells_a_block_that_the_config_does_not(
    size: tuple[int, int], count: tuple[int, int]
) -> None:
    """Blocks of 50 by 60, and of 32 by 64, where 128 by 128 would be two by three and one."""
    codes = random_codes(size)
    scales = np.random.default_rng(1).uniform(0.5, 2, count).astype(np.float32)
    weights = {"a.weight": mx.array(codes), "a.weight_scale_inv": mx.array(scales)}
    found = without_fp8(weights, {})["a.weight"].astype(mx.float32)
    each = [s // c for s, c in zip(size, count, strict=True)]
    spread = np.kron(scales, np.ones(each))
    np.testing.assert_array_equal(np.array(found), rounded(e4m3(codes) * spread))


@pytest.mark.parametrize("count", [(3, 5), (2, 7), (7,), (2, 2, 3), (2, 0)])
def test_scales_of_another_weight_are_refused(count: tuple[int, ...]) -> None:
    weights = {
        "a.weight": mx.array(random_codes((200, 300))),
        "a.weight_scale_inv": mx.ones(count),
    }
    with pytest.raises(ModelUnusable) as caught:
        without_fp8(weights, {})
    assert str(caught.value) == (
        f"the head's a.weight_scale_inv has shape {count}, which does not go with a weight of"
        " (200, 300); it must hold one scale for each block, row or tensor"
    )


def test_a_scale_for_each_expert() -> None:
    codes = random_codes((3, 5, 8))
    scales = np.array([0.5, 1.0, 3.0], np.float32)
    weights = {"a.weight": mx.array(codes), "a.weight_scale": mx.array(scales)}
    found = without_fp8(weights, {})["a.weight"].astype(mx.float32)
    np.testing.assert_array_equal(np.array(found), rounded(e4m3(codes) * scales[:, None, None]))


def test_scales_in_eight_bits_are_powers_of_two(tmp_path: Path) -> None:
    """127 stands for 1, 120 for 2**-7, 130 for 8: read from a file that says so."""
    codes = random_codes((256, 128))
    exponents = np.array([[120], [130]], np.uint8)
    path = tmp_path / "a.safetensors"
    save_as_fp8(path, {"a.weight": codes, "a.weight_scale_inv": exponents}, exponents=True)
    found = without_fp8(dict(mx.load(str(path))), {})["a.weight"]  # type: ignore[arg-type]
    scales = np.repeat([2.0**-7, 8.0], 128)[:, None]
    np.testing.assert_array_equal(np.array(found.astype(mx.float32)), rounded(e4m3(codes) * scales))


def test_codes_without_a_scale_are_refused() -> None:
    weights = {"a.weight": mx.array(random_codes((5, 8))), "b.scales": mx.zeros((5,), mx.uint8)}
    with pytest.raises(ModelUnusable) as caught:
        without_fp8(weights, {})
    assert str(caught.value) == (
        "the head's a.weight is in 8 bits without a scale; it needs a.weight_scale_inv or"
        " a.weight_scale: fetch the checkpoint anew"
    )


def test_a_head_in_fp8_as_published(tmp_path: Path) -> None:
    published = mimo_v2_flash.published()
    quantisation = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    packed: Tensors = {}
    meant: Tensors = {}
    for number, (name, array) in enumerate(published.head.items()):
        if array.ndim != 2 or "o_proj" in name:
            packed[name] = meant[name] = array
            continue
        codes = random_codes(array.shape, number)
        rows, columns = np.arange(array.shape[0]) // 32, np.arange(array.shape[1]) // 32
        scales = np.random.default_rng(number).uniform(1e-3, 2e-3, (rows[-1] + 1, columns[-1] + 1))
        packed[name], packed[f"{name}_scale_inv"] = codes, scales.astype(np.float32)
        meant[name] = rounded(e4m3(codes) * scales[rows[:, None], columns])
    config = published.config | {"quantization_config": quantisation}
    folder = dataclasses.replace(published, config=config, head={}).write(tmp_path)
    save_as_fp8(folder / "mtp.safetensors", packed)
    _, head = open_head(folder)
    embedding, output = parts(published, "model.embed_tokens.weight", "lm_head.weight")
    t = {n: a.astype(np.float64) for n, a in meant.items()}
    head.set_dtype(mx.float32)
    assert_follows(head, embedding, mimo_v2_flash.states(t), lambda y: y @ output.T)


def save_as_fp8(path: Path, tensors: Tensors, *, exponents: bool = False) -> None:
    """Write a file whose 8-bit weights are declared as e4m3, as published, and scales as e8m0."""
    save(path, tensors, {"format": "pt"})
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8 : 8 + length])
    for name, entry in entries.items():
        if entry.get("dtype") == "U8":
            entry["dtype"] = "F8_E8M0" if exponents and "scale" in name else "F8_E4M3"
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + length :])
