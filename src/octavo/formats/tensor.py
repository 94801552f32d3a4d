"""A tensor as it lies in a file: a storage format, a shape, and bytes that are not copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tensor"]


@dataclass(frozen=True)
class Tensor:
    """Rows of stored blocks.

    Attributes:
        name: as the file calls it.
        dtype: storage format: "F32", "F16", "BF16", "Q4_0", ..., "Q6_K", "IQ4_XS", "MXFP4", "INT4_G128", ..., "INT8",
            "FP8_E4M3", ... (see formats/ggml.py).
        shape: logical shape, row-major; a linear layer's is (outputs N, inputs K), a norm's (H,).
        data: u8 [rows, row_bytes], C-contiguous, with rows = the product of all dimensions but the last;
            usually a read-only view into a memory map.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
