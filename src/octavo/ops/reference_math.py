"""Element-wise arithmetic of the reference ops: norms, activations, rotation, rounding. NumPy, f32 in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops.api import F32, Activation, Norm, RopeTable

__all__ = ["activate", "from_bfloat16", "from_storage", "rms_norm", "rotate", "softcap", "to_bfloat16", "to_storage"]


def rms_norm(x: F32, norm: Norm) -> F32:
    """x [..., H] / sqrt(mean(x^2) + eps) * weight [H] (Zhang and Sennrich, arXiv:1910.07467) -> [..., H]."""
    mean_square: F32 = np.square(x).mean(axis=-1, keepdims=True)
    result: F32 = x / np.sqrt(mean_square + np.float32(norm.eps)) * norm.weight
    return result


def activate(x: F32, activation: Activation) -> F32:
    """silu: x * sigmoid(x); gelu_tanh: the tanh form of GELU (Hendrycks and Gimpel, arXiv:1606.08415)."""
    half = np.float32(0.5)
    result: F32
    if activation == "silu":
        # tanh has no overflow at either end, unlike exp: sigmoid(x) = (1 + tanh(x / 2)) / 2.
        result = x * (half + half * np.tanh(half * x))
    elif activation == "gelu_tanh":
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
        result = half * x * (1 + np.tanh(inner))
    else:
        raise ValueError(f"activation {activation!r} is not known; possible: silu, gelu_tanh")
    return result


def softcap(x: F32, cap: float) -> F32:
    """cap * tanh(x / cap); x itself if cap is 0."""
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x


def rotate(x: F32, positions: NDArray[np.int32], rope: RopeTable) -> F32:
    """Rotary embedding (Su et al., arXiv:2104.09864): x [T, heads, D], positions [T] -> [T, heads, D]."""
    half = rope.cos.shape[1]
    cos, sin = rope.cos[positions][:, None, :], rope.sin[positions][:, None, :]
    if rope.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result


def to_bfloat16(x: F32) -> NDArray[np.uint16]:
    """Upper 16 bits of f32, rounded to nearest, ties to even; a NaN stays a (quiet) NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> F32:
    """The f32 whose upper 16 bits these are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_storage(x: F32, dtype: str) -> NDArray[Any]:
    """f32 -> what a KV store of this dtype holds (round to nearest even; beyond float16's 65504: infinity)."""
    if dtype == "bfloat16":
        return to_bfloat16(x)
    with np.errstate(over="ignore"):
        return x.astype(np.float16 if dtype == "float16" else np.float32)


def from_storage(stored: NDArray[Any], dtype: str) -> F32:
    """What a KV store of this dtype holds -> f32, exactly."""
    return from_bfloat16(stored) if dtype == "bfloat16" else stored.astype(np.float32)
