"""`octavo info`: a listing for people, the same facts as JSON, with and without the C++ extension."""

import json
import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from octavo.cli.info import info
from octavo.core.errors import ConfigError
from octavo.core.host import host_facts


class Extension(ModuleType):
    """Stands in for octavo.ops.native and notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__("octavo.ops.native")
        self.measured: list[int] = []

    def available_tiers(self) -> list[str]:
        return ["avx9", "portable"]

    class NativeOps:
        tier = "avx9"

        def __init__(self, threads: int) -> None:
            assert threads >= 1

    def measure_stream(self, threads: int) -> float:
        self.measured.append(threads)
        return 12.34


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Extension:
    module = Extension()
    monkeypatch.setitem(sys.modules, "octavo.ops.native", module)
    monkeypatch.setenv("OCTAVO_THREADS", "3")
    return module


def run(*arguments: str) -> str:
    result = CliRunner().invoke(info, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def listing(*arguments: str) -> dict[str, str]:
    return {line[:14].strip(): line[14:] for line in run(*arguments).splitlines()}


def test_the_listing(extension: Extension) -> None:
    rows = listing()
    assert "tier avx9 of avx9, portable" in rows["kernels"]
    assert rows["stream rate"] == "12.3 GB/s read with 3 threads"
    assert rows["threads"].startswith("3 (OCTAVO_THREADS=3")
    assert f"{host_facts().allowed_cores} physical" in rows["cores"]
    assert "available of" in rows["memory"]
    assert extension.measured == [3]


def test_piped_output_has_no_escape_codes(extension: Extension) -> None:
    assert "\x1b" not in run()


def test_json_holds_the_same(extension: Extension) -> None:
    found = json.loads(run("--json"))
    assert found["stream_gb_s"] == 12.34
    assert found["native"] == {"tier": "avx9", "tiers": ["avx9", "portable"], "problem": None}
    assert found["threads"]["count"] == 3
    assert found["host"]["allowed_cores"] == host_facts().allowed_cores


def test_no_measure_measures_nothing(extension: Extension) -> None:
    assert listing("--no-measure")["stream rate"] == "not measured"
    assert json.loads(run("--json", "--no-measure"))["stream_gb_s"] is None
    assert extension.measured == []


def test_a_missing_extension_is_said_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "octavo.ops.native", None)
    rows = listing()
    assert "not available" in rows["kernels"]
    assert rows["stream rate"] == "not measured"
    assert "not available" in json.loads(run("--json"))["native"]["problem"]


def test_another_backend_in_use_is_said(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    assert "OCTAVO_BACKEND=reference is in use" in listing()["kernels"]


def test_a_bad_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_THREADS", "many")
    with pytest.raises(ConfigError, match="OCTAVO_THREADS='many'"):
        CliRunner().invoke(info, [], catch_exceptions=False)


def test_an_unknown_flag_is_a_usage_error() -> None:
    assert CliRunner().invoke(info, ["--frobnicate"]).exit_code == 2


def test_the_real_extension_measures_a_plausible_rate() -> None:
    pytest.importorskip("octavo.ops.native", reason="the C++ extension is not built", exc_type=ImportError)
    found = json.loads(run("--json"))
    assert found["native"]["tier"] in found["native"]["tiers"]
    assert 0.5 < found["stream_gb_s"] < 5000
