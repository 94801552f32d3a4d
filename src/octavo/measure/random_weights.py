"""Random weight matrices in any storage format: valid blocks without quantizing anything."""

from __future__ import annotations

import numpy as np

from octavo.core.errors import ConfigError, UnsupportedModelError
from octavo.formats.ggml import FORMATS, find_format
from octavo.formats.tensor import Tensor

__all__ = ["random_tensor"]

# Byte offsets of the f16 scales in a block; whatever the other bytes are, a block is valid.
_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
_MXFP4_EXPONENTS = (118, 124)
_SPREAD = 0.05


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
        return Tensor("random", dtype, (rows, columns), _floats(dtype, rng, rows, columns))
    count = rows * columns // form.block_elements
    blocks = rng.integers(0, 256, (count, form.block_bytes), dtype=np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = rng.integers(*_MXFP4_EXPONENTS, count)
    elif dtype in _SCALES:
        # Super-blocks multiply this scale by 6-bit ones, so it has to be smaller.
        factor = np.float32(0.05 if form.block_elements == 256 else 1)
        for at in _SCALES[dtype]:
            scale = rng.uniform(0.0005, 0.002, count).astype(np.float32) * factor
            blocks[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    else:
        known = ", ".join(name for name in FORMATS if name in _SCALES or FORMATS[name].block_elements == 1)
        raise UnsupportedModelError(f"no random blocks are known for {dtype}; possible: {known}, MXFP4")
    return Tensor("random", dtype, (rows, columns), blocks.reshape(rows, -1))


def _floats(
    dtype: str, rng: np.random.Generator, rows: int, columns: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    values = rng.standard_normal((rows, columns), np.float32) * np.float32(_SPREAD)
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint8)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)
