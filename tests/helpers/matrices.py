"""Activations and matrices for the tests of native kernels, and what the kernels make of activations."""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo.formats.ggml import FORMATS
from octavo.formats.tensor import Tensor
from octavo.measure.random_weights import random_tensor

__all__ = ["FLOATS", "KINDS", "activations", "bf16", "columns_for", "f32", "matrix", "rounded", "same_bits", "seen"]

FLOATS = ("F32", "F16", "BF16", "FP8_E4M3", "FP8_E4M3_B128")
"""Storage formats whose activations stay floats (bf16 ones where the tier multiplies in bf16)."""

KINDS = ("normal", "spikes", "zeros", "denormal", "tiny", "huge", "sparse")
"""What a row of `activations` can be."""


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@cache
def matrix(dtype: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """random_tensor, remembered."""
    return random_tensor(dtype, rows, columns, seed)


def columns_for(dtype: str, *wanted: int) -> list[int]:
    """Those of the wanted widths that divide into the format's blocks (of 4 numbers at least), or one block."""
    block = max(FORMATS[dtype].block_elements, 4, 32 * (FORMATS[dtype].header_bytes > 0))
    return [k for k in wanted if k % block == 0] or [block]


def activations(rows: int, columns: int, kinds: tuple[str, ...] = KINDS, seed: int = 0) -> np.ndarray:
    """f32 [rows, columns]; each row is of one of the kinds."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    for row, kind in zip(x, rng.choice(kinds, rows), strict=True):
        if kind == "spikes":
            row[rng.random(columns) < 0.02] *= 40
        elif kind == "sparse":
            row[rng.random(columns) < 0.95] = 0
        else:
            row *= {"normal": 1, "zeros": 0, "denormal": 1e-40, "tiny": 1e-21, "huge": 1e30}[str(kind)]
    return x


def rounded(x: np.ndarray) -> np.ndarray:
    """What quantized formats see: int8 with a scale per 256, outliers (past 4.5 rms of the row) as they are."""
    rms = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    outliers = np.abs(x) > 4.5 * rms
    small, kept = np.where(outliers, np.float32(0), x), x.copy()
    for k in range(0, x.shape[1], 256):
        chunk = small[:, k : k + 256]
        top = np.abs(chunk).max(axis=1, keepdims=True)
        inverse = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
        kept[:, k : k + 256] = np.rint(chunk * inverse) * (top / np.float32(127))
    return np.where(outliers, x, kept)


def bf16(x: np.ndarray) -> np.ndarray:
    """x rounded to bf16, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def seen(x: np.ndarray, dtype: str, tier: str) -> np.ndarray:
    """Activations as a format's kernel multiplies them."""
    if dtype not in FLOATS:
        return rounded(x)
    return bf16(x) if dtype not in ("F32", "F16") and tier == "avx512_bf16" else x


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, but that any NaN is like any other."""
    equal = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return a.shape == b.shape and bool(equal.all())
