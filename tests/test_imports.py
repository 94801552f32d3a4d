"""Imports point one way. Every import statement of src/octavo, top-level or inside a function, is read by ast.

    core <- formats <- ops <- quant, cache, sampling, models <- speculate <- engine <- server, measure, train, cluster
    <- cli

A room may import itself and the rooms it is listed with below. Some outside packages live in one room only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "octavo"

# Rooms of one tier may not import each other (quant, cache, sampling and models are independent).
TIERS: list[set[str]] = [
    {"core"},
    {"formats"},
    {"ops"},
    {"quant", "cache", "sampling", "models"},
    {"speculate"},
    {"engine"},
    {"server", "measure", "train", "cluster"},
    {"cli"},
]
ALLOWED: dict[str, set[str]] = {
    room: set().union(*TIERS[:number]) for number, tier in enumerate(TIERS) for room in tier
}

# Outside package -> the only places it may be imported from: rooms, or modules below them.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "torch": ("ops.torch", "train", "cluster"),
    "triton": ("ops.torch",),
    "transformers": (),
    "fastapi": ("server",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "httptools": ("server",),
    "msgspec": ("server",),
    "prometheus_client": ("server",),
    "opentelemetry": ("server",),
    "huggingface_hub": ("formats",),
    "urllib": ("formats",),
    "http": ("formats",),
    "httpx": ("formats",),
    "requests": ("formats",),
    "socket": ("formats", "server", "cluster"),
    "ray": ("cluster",),
    "octavo._native": ("ops.native", "ops.native_capture"),
    "octavo.ops._native": ("ops.native", "ops.native_capture"),
}


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` imports "a.b.c" (c may be a module or a name of a.b)."""

    target: str
    line: int


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import in the text of a module, relative ones made absolute; import_module("...") counts too."""
    package = module if is_package else module.rpartition(".")[0]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
            name = node.args[0] if node.args else None
            named = [name] if isinstance(name, ast.Constant) else _module_names(tree)
            yield from (Import(str(each.value).partition(":")[0], each.lineno) for each in named)
            if not named:
                yield Import("<computed>", node.lineno)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What in this module's imports breaks the rules; module is dotted, e.g. "octavo.ops.api"."""
    found = []
    for imported in imports(source, module, is_package=is_package):
        reason = _outside_rule(module, imported.target) or _direction_rule(module, imported.target)
        if reason:
            found.append(f"{module}:{imported.line} imports {imported.target}: {reason}")
    return found


def _module_names(tree: ast.AST) -> list[ast.Constant]:
    """Strings like "octavo.cli.info:info": a module that imports what a table names is held to the table's names."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node for node in strings if re.fullmatch(r"octavo(\.\w+)+(:\w+)?", node.value)]


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _below(module: str, place: str) -> bool:
    """Whether the module is `place` or in it; a module that shares its name as a prefix counts: native_pool."""
    name = module.removeprefix("octavo.")
    return name == place or name.startswith((f"{place}.", f"{place}_"))


def _outside_rule(module: str, target: str) -> str | None:
    for package, places in OUTSIDE.items():
        same = target == package or target.startswith(f"{package}.")
        if same and not any(_below(module, p) for p in places):
            return f"{package} belongs in {' or '.join(places) or 'no room'}"
    return "a computed import cannot be checked" if target == "<computed>" else None


def _direction_rule(module: str, target: str) -> str | None:
    parts = target.split(".")
    if parts[0] != "octavo":
        return None
    room = module.split(".")[1] if "." in module else ""
    if not room:  # octavo/__init__.py re-exports the public names
        return "nothing imports cli" if parts[1:2] == ["cli"] else None
    if room not in ALLOWED:
        return f"{room} is no room of the design; add it to the tiers"
    other = parts[1] if len(parts) > 1 else ""
    if other == room or other in ALLOWED[room] or other.startswith(("_native", "__")):
        return None
    return f"{room} may import {', '.join(sorted(ALLOWED[room])) or 'no other room'}"


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    is_package = path.name == "__init__.py"
    # A command is named in the package of the program (octavo/__main__.py), which is the command line itself.
    if path == SOURCE / "__main__.py":
        return
    broken = violations(path.read_text(encoding="utf-8"), dotted(path), is_package=is_package)
    assert not broken, "\n".join(broken)


def test_all_rooms_were_walked() -> None:
    rooms = {path.relative_to(SOURCE).parts[0] for path in modules() if path.parent != SOURCE}
    assert {"core", "formats", "ops", "models", "cache", "sampling", "engine", "cli"} <= rooms


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("octavo.core.x", "from octavo.formats.tensor import Tensor"),
        ("octavo.core.x", "import octavo.ops"),
        ("octavo.core.x", "def f():\n    from octavo.engine import llm"),
        ("octavo.core.x", "if TYPE_CHECKING:\n    from octavo.models.config import Config"),
        ("octavo.formats.x", "from ..ops import api"),
        ("octavo.formats.x", "from .. import ops"),
        ("octavo.formats.x", "from octavo import ops"),
        ("octavo.formats.x", "import octavo"),
        ("octavo.cache.x", "from octavo.sampling.draw import draw"),
        ("octavo.models.x", "from octavo.cache.pages import Pages"),
        ("octavo.sampling.x", "from octavo.engine.llm import LLM"),
        ("octavo.engine.x", "from octavo.cli.main import main"),
        ("octavo.engine.x", "import octavo.server.app as app"),
        ("octavo.server.x", "from octavo.measure import bench"),
        ("octavo.attic.x", "from octavo.core import errors"),
        ("octavo", "from octavo.cli.main import main"),
        ("octavo.engine.x", "import importlib\nimportlib.import_module('octavo.cli.main')"),
        ("octavo.engine.x", "importlib.import_module(name)"),
        ("octavo.engine.x", "T = {'a': 'octavo.core.env', 'b': 'octavo.cli.run:run'}\nimport_module(T[name])"),
        ("octavo", "T = ['octavo.cli.run']\nimport_module(T[0])"),
        ("octavo.engine.x", "__import__('torch')"),
        ("octavo.models.x", "import torch"),
        ("octavo.ops.reference", "import torch.nn.functional as F"),
        ("octavo.ops.native", "from torch import Tensor"),
        ("octavo.engine.x", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("octavo.engine.x", "from transformers import AutoModel"),
        ("octavo.cli.serve", "import uvicorn"),
        ("octavo.engine.x", "from fastapi import FastAPI"),
        ("octavo.models.x", "import huggingface_hub"),
        ("octavo.cli.x", "import urllib.request"),
        ("octavo.cli.x", "from urllib import request"),
        ("octavo.engine.x", "from http.client import HTTPConnection"),
        ("octavo.train.x", "import ray"),
        ("octavo.engine.x", "from octavo import _native"),
        ("octavo.engine.x", "import octavo._native"),
        ("octavo.models.x", "from octavo.ops._native import linear"),
        ("octavo.ops.reference", "from octavo.ops import _native"),
        ("octavo.ops.api", "from . import _native"),
    ],
)
def test_a_violation_is_caught(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("octavo.core.host", "from octavo.core.env import env\nfrom .errors import ConfigError\nimport os"),
        ("octavo.ops.native", "from octavo.ops import _native\nfrom . import _native\nimport octavo._native"),
        ("octavo.ops.native_pool", "from octavo.ops._native import Pool"),
        ("octavo.ops.torch.linear", "import torch"),
        ("octavo.train.lora", "from torch import nn\nfrom octavo.engine.llm import LLM"),
        ("octavo.formats.hub", "import urllib.request\nfrom huggingface_hub import hf_hub_url\nimport http.client"),
        ("octavo.models.rope", "from octavo.ops.api import Ops\nfrom octavo.formats.tensor import Tensor"),
        ("octavo.engine.llm", "from octavo.cache.pages import P\nfrom octavo.models import x\nimport octavo.sampling"),
        ("octavo.cli.main", "from octavo.engine.llm import LLM\nfrom octavo.core import errors"),
        ("octavo", "from octavo.engine.llm import LLM"),
        ("octavo.server.app", "import fastapi, uvicorn"),
        ("octavo", "T = {'LLM': 'octavo.engine.llm'}\nimport_module(T[name])"),
        ("octavo.cli.main", "T = {'run': 'octavo.cli.run:run'}\nimport_module(T[name])"),
        ("octavo.models.x", "import torchless\nimport httpserver"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_relative_imports_of_a_package_file_are_resolved() -> None:
    assert violations("from .linear import f", "octavo.formats", is_package=True) == []
    assert violations("from ..engine import f", "octavo.formats", is_package=True)
