"""Random weight matrices in any storage format: valid blocks without quantizing anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.e4m3 import encode_e4m3
from octavo.formats.ggml import FORMATS, BlockFormat, find_format
from octavo.formats.tensor import Tensor

__all__ = ["random_tensor"]

# Byte offsets of the f16 scales in a block; whatever the other bytes are, a block is valid.
_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "INT4_G32": (0,), "INT4_G64": (0,), "INT4_G128": (0,), "INT4_G32_Z": (0,), "INT4_G64_Z": (0,), "INT4_G128_Z": (0,),
}  # fmt: skip
# Those of which a block or row is an f32 scale and then single bytes.
_BYTES = ("INT8", "FP8_E4M3", "FP8_E4M3_B128")
_MXFP4_EXPONENTS = (118, 124)
_SPREAD = 0.05
# E4M3 numbers are drawn from this many, which is quicker than rounding each and as random for a kernel.
_POOL = 1 << 16


def random_tensor(dtype: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """A matrix [rows, columns] in this format, with weights below about 0.1, as models have.

    Raises UnsupportedModelError (no such format, or none that blocks are known for), ConfigError (columns do not
    divide into blocks).
    """
    form = find_format(dtype)
    if columns % form.block_elements:
        raise ConfigError(f"{columns} columns are no multiple of the {form.block_elements} values of a {dtype} block")
    rng = np.random.default_rng(seed)
    if form.block_elements == 1:
        data = _floats(dtype, rng, rows, columns)
    elif dtype in _BYTES:
        data = _scaled_bytes(form, rng, rows, columns)
    elif dtype in _SCALES or dtype == "MXFP4":
        data = _blocks(form, rng, rows * columns // form.block_elements)
    else:
        known = ", ".join(n for n, f in FORMATS.items() if n in (*_SCALES, *_BYTES, "MXFP4") or f.block_elements == 1)
        raise UnsupportedModelError(f"no random blocks are known for {dtype}; possible: {known}")
    return Tensor("random", dtype, (rows, columns), data.reshape(rows, -1))


def _blocks(form: BlockFormat, rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """u8 [count, block_bytes]: random bytes but for scales and zero points."""
    blocks = rng.integers(0, 256, (count, form.block_bytes), dtype=np.uint8)
    if form.name == "MXFP4":
        blocks[:, 0] = rng.integers(*_MXFP4_EXPONENTS, count)
    if form.name.endswith("_Z"):
        blocks[:, 2] = rng.integers(0, 17, count)
    # Super-blocks multiply this scale by 6-bit ones, so it has to be smaller.
    factor = np.float32(0.05 if form.block_elements == 256 else 1)
    for at in _SCALES.get(form.name, ()):
        scale = rng.uniform(0.0005, 0.002, count).astype(np.float32) * factor
        blocks[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return blocks


def _scaled_bytes(form: BlockFormat, rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """u8 [n, 4 + block]: the f32 scale of each row or block, then any int8, or E4M3 from a normal distribution."""
    block = columns if form.header_bytes else form.block_elements
    count = rows if form.header_bytes else rows * columns // block
    data = np.empty((count, 4 + block), np.uint8)
    if form.name == "INT8":
        data[:, 4:] = rng.integers(0, 256, (count, block), dtype=np.uint8)
    else:
        pool = encode_e4m3(rng.standard_normal(_POOL, np.float32) * np.float32(100))
        data[:, 4:] = pool[rng.integers(0, _POOL, (count, block), dtype=np.uint16)]
    data[:, :4] = rng.uniform(0.0005, 0.002, (count, 1)).astype(np.float32).view(np.uint8)
    return data


def _floats(dtype: str, rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    values = rng.standard_normal((rows, columns), np.float32) * np.float32(_SPREAD)
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint8)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)
