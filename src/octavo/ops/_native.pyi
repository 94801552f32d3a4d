from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Pages = NDArray[np.generic]

def tiers() -> list[str]: ...
def formats() -> list[str]: ...
def block_size(format: str) -> int: ...

class PackedLinear:
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def packed_bytes(self) -> int: ...

class BoundKv:
    def __init__(self, k: Sequence[Pages], v: Sequence[Pages], dtype: str) -> None: ...

class Program:
    def __init__(self) -> None: ...
    @property
    def width(self) -> int: ...
    @property
    def output_by_row(self) -> bool: ...
    def embedding(self, format: str, table: Bytes, columns: int, scale: float) -> int: ...
    def rms_norm(self, x: int, weight: F32, eps: float) -> int: ...
    def linear(
        self,
        x: int,
        w: PackedLinear,
        norm: F32 | None,
        eps: float,
        activation: str,
        residual: int | None,
        post: F32 | None,
        post_eps: float,
    ) -> int: ...
    def rope_kv_write(
        self,
        qkv: int,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos: F32 | None,
        sin: F32 | None,
        interleaved: bool,
        q_norm: F32 | None,
        q_eps: float,
        k_norm: F32 | None,
        k_eps: float,
    ) -> int: ...
    def attention(
        self,
        q: int,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: F32 | None = None,
    ) -> int: ...
    def select_rows(self, x: int) -> int: ...
    def softcap(self, x: int, cap: float) -> None: ...
    def finish(self, output: int) -> None: ...

class Context:
    def __init__(self, threads: int, tier: str) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def tier(self) -> str: ...
    def pack(
        self, formats: Sequence[str], parts: Sequence[Bytes], columns: int, bias: F32 | None, gated: bool
    ) -> PackedLinear: ...
    def linear(
        self,
        x: F32,
        w: PackedLinear,
        y: F32,
        norm: F32 | None,
        eps: float,
        activation: str,
        residual: F32 | None,
        post: F32 | None,
        post_eps: float,
    ) -> None: ...
    def rope_kv_write(
        self,
        qkv: F32,
        k: Pages,
        v: Pages,
        dtype: str,
        positions: I32,
        starts: I32,
        lens: I32,
        tables: I32,
        tree: U64 | None,
        heads: int,
        cos: F32 | None,
        sin: F32 | None,
        interleaved: bool,
        q_norm: F32 | None,
        q_eps: float,
        k_norm: F32 | None,
        k_eps: float,
        q: F32,
    ) -> None: ...
    def attention(
        self,
        q: F32,
        k: Pages,
        v: Pages,
        dtype: str,
        positions: I32,
        starts: I32,
        lens: I32,
        tables: I32,
        tree: U64 | None,
        heads: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: F32 | None,
        out: F32,
    ) -> None: ...
    def embedding(self, format: str, table: Bytes, columns: int, tokens: I32, scale: float, y: F32) -> None: ...
    def run(
        self,
        program: Program,
        kv: BoundKv,
        tokens: I32,
        positions: I32,
        starts: I32,
        lens: I32,
        tables: I32,
        rows: I32,
        out: F32,
        tree: U64 | None = None,
    ) -> None: ...
    def argmax(self, x: F32, ids: I32, values: F32) -> None: ...
    def rms_norm(self, x: F32, weight: F32, eps: float, y: F32) -> None: ...
    def softcap(self, x: F32, cap: float) -> None: ...
    def stream_gb_s(self, bytes: int, seconds: float) -> float: ...
    def dot_gmac_s(self, seconds: float, kind: str = "int8") -> float: ...
