"""The storage formats of tensors, and the reference way back to float32.

A row of a tensor is a header (of most formats empty) and a run of blocks; a block holds `block_elements` values in
`block_bytes` bytes, scale included. The layouts of GGUF are those of ggml (github.com/ggml-org/ggml, `ggml-common.h`);
their decoders live in `ggml_basic.py` (floats, the 32-value blocks) and `ggml_kquants.py` (the 256-value
super-blocks). Those of other quantized checkpoints are in `scaled.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import ModelFormatError, UnsupportedModelError
from octavo.formats import ggml_basic as basic
from octavo.formats import ggml_kquants as kquants
from octavo.formats import scaled
from octavo.formats.tensor import Tensor

__all__ = ["FORMATS", "BlockFormat", "dequantize", "dequantize_tensor", "find_format", "format_of_id", "row_bytes"]


@dataclass(frozen=True)
class BlockFormat:
    """One storage format.

    Attributes:
        name: as in `Tensor.dtype`, e.g. "Q4_K".
        ggml_id: the number that a GGUF file stores; None: GGUF has no such format.
        block_elements: values in one block (1 for plain floats).
        block_bytes: bytes of one block.
        header_bytes: of each row, before its first block.
    """

    name: str
    ggml_id: int | None
    block_elements: int
    block_bytes: int
    header_bytes: int = 0


FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("F32", 0, 1, 4),
        BlockFormat("F16", 1, 1, 2),
        BlockFormat("BF16", 30, 1, 2),
        BlockFormat("Q4_0", 2, 32, 18),
        BlockFormat("Q4_1", 3, 32, 20),
        BlockFormat("Q5_0", 6, 32, 22),
        BlockFormat("Q5_1", 7, 32, 24),
        BlockFormat("Q8_0", 8, 32, 34),
        BlockFormat("Q2_K", 10, 256, 84),
        BlockFormat("Q3_K", 11, 256, 110),
        BlockFormat("Q4_K", 12, 256, 144),
        BlockFormat("Q5_K", 13, 256, 176),
        BlockFormat("Q6_K", 14, 256, 210),
        BlockFormat("IQ4_NL", 20, 32, 18),
        BlockFormat("IQ4_XS", 23, 256, 136),
        BlockFormat("MXFP4", 39, 32, 17),
        # GPTQ, AWQ: groups of 32, 64 or 128; _Z with a zero point.
        BlockFormat("INT4_G32", None, 32, 2 + 16),
        BlockFormat("INT4_G64", None, 64, 2 + 32),
        BlockFormat("INT4_G128", None, 128, 2 + 64),
        BlockFormat("INT4_G32_Z", None, 32, 3 + 16),
        BlockFormat("INT4_G64_Z", None, 64, 3 + 32),
        BlockFormat("INT4_G128_Z", None, 128, 3 + 64),
        # One scale for a row; a tensor that has one for all rows repeats it.
        BlockFormat("INT8", None, 32, 32, header_bytes=4),
        BlockFormat("FP8_E4M3", None, 32, 32, header_bytes=4),
        # One scale for 128 x 128 values, which each of its rows repeats.
        BlockFormat("FP8_E4M3_B128", None, 128, 4 + 128),
    )
}
"""Every format that Octavo reads, by name."""

_BY_ID = {f.ggml_id: f for f in FORMATS.values() if f.ggml_id is not None}

# Names of the other ids, so that an error can say what a file holds and not only a number.
_OTHER_IDS = {
    4: "Q4_2 (withdrawn)", 5: "Q4_3 (withdrawn)", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    31: "Q4_0_4_4 (withdrawn)", 32: "Q4_0_4_8 (withdrawn)", 33: "Q4_0_8_8 (withdrawn)", 34: "TQ1_0", 35: "TQ2_0",
    36: "IQ4_NL_4_4 (withdrawn)", 37: "IQ4_NL_4_8 (withdrawn)", 38: "IQ4_NL_8_8 (withdrawn)", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

_DECODERS: dict[str, Callable[[NDArray[np.uint8], NDArray[np.float32]], None]] = {
    "F32": basic.decode_f32,
    "F16": basic.decode_f16,
    "BF16": basic.decode_bf16,
    "Q4_0": basic.decode_q4_0,
    "Q4_1": basic.decode_q4_1,
    "Q5_0": basic.decode_q5_0,
    "Q5_1": basic.decode_q5_1,
    "Q8_0": basic.decode_q8_0,
    "IQ4_NL": basic.decode_iq4_nl,
    "MXFP4": basic.decode_mxfp4,
    "Q2_K": kquants.decode_q2_k,
    "Q3_K": kquants.decode_q3_k,
    "Q4_K": kquants.decode_q4_k,
    "Q5_K": kquants.decode_q5_k,
    "Q6_K": kquants.decode_q6_k,
    "IQ4_XS": kquants.decode_iq4_xs,
    "INT4_G32": scaled.decode_int4,
    "INT4_G64": scaled.decode_int4,
    "INT4_G128": scaled.decode_int4,
    "INT4_G32_Z": scaled.decode_int4_z,
    "INT4_G64_Z": scaled.decode_int4_z,
    "INT4_G128_Z": scaled.decode_int4_z,
    "INT8": scaled.decode_int8_rows,
    "FP8_E4M3": scaled.decode_e4m3_rows,
    "FP8_E4M3_B128": scaled.decode_e4m3_blocks,
}

# Values decoded at once: 512 KiB of float32 and the integers they come from. Smaller chunks pay more for each NumPy
# call, larger ones leave the L2 cache.
_CHUNK_VALUES = 1 << 17


def find_format(dtype: str) -> BlockFormat:
    """The format of this name. Raises UnsupportedModelError, which lists the supported ones."""
    found = FORMATS.get(dtype)
    if found is None:
        raise UnsupportedModelError(f"storage format {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
    return found


def format_of_id(ggml_id: int, tensor_name: str) -> BlockFormat:
    """The format that a GGUF file means by a type number.

    Raises UnsupportedModelError, which names the tensor, its type and the supported formats.
    """
    found = _BY_ID.get(ggml_id)
    if found is None:
        kind = _OTHER_IDS.get(ggml_id, "unknown to this version")
        raise UnsupportedModelError(
            f"tensor {tensor_name!r} is stored as ggml type {ggml_id}, {kind}; take a file whose tensors are all "
            f"among {', '.join(f.name for f in _BY_ID.values())}"
        )
    return found


def row_bytes(dtype: str, columns: int) -> int:
    """Bytes of one row of `columns` values.

    Raises UnsupportedModelError for an unknown format, ModelFormatError if the row does not fill whole blocks.
    """
    stored = find_format(dtype)
    blocks, rest = divmod(columns, stored.block_elements)
    if rest or columns < 0:
        raise ModelFormatError(
            f"a row of {columns} values cannot be {dtype}, which stores multiples of {stored.block_elements}"
        )
    return stored.header_bytes + blocks * stored.block_bytes


def dequantize(dtype: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """data u8 [rows, row_bytes] -> a new array f32 [rows, columns].

    Follows ggml's reference decoders bit for bit (float32 products, no fused multiply-add). Besides the result it
    allocates about 1.5 MiB, whatever the size of the tensor (formats with a header: or 12 bytes per value of a row).
    Scales that are infinite or NaN give what IEEE arithmetic gives.
    Raises UnsupportedModelError for an unknown format, ModelFormatError for partial blocks.
    """
    stored = find_format(dtype)
    rows, stride = data.shape
    count, rest = divmod(stride - stored.header_bytes, stored.block_bytes)
    if rest or count < 0:
        header = f", after a header of {stored.header_bytes}" if stored.header_bytes else ""
        raise ModelFormatError(
            f"{stride} bytes are no whole number of {dtype} blocks of {stored.block_bytes} bytes{header}"
        )
    result = np.empty((rows, count * stored.block_elements), np.float32)
    units, values = np.ascontiguousarray(data), result
    if not stored.header_bytes:  # blocks do not care which row they are in
        units, values = units.reshape(-1, stored.block_bytes), result.reshape(-1, stored.block_elements)
    decode = _DECODERS[dtype]
    step = max(1, _CHUNK_VALUES // max(1, values.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(units), step):
            decode(units[start : start + step], values[start : start + step])
    return result


def dequantize_tensor(tensor: Tensor) -> NDArray[np.float32]:
    """The values of a stored tensor: f32 [tensor.shape]. Raises as `dequantize`."""
    return dequantize(tensor.dtype, tensor.data).reshape(tensor.shape)
