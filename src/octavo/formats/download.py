"""Fetch one URL into one file: resumable, checked, and put into place by a rename.

Bytes gather in `NAME.part` beside the target. A `.part` left by an interrupted run is continued with an HTTP Range
request (RFC 9110, section 14), and what was hashed is always the whole file, old bytes included.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from octavo.core.errors import DownloadError

__all__ = ["Progress", "Silent", "Transport", "check_space", "fetch_file", "local_path", "part_bytes", "root_cause"]

CHUNK_BYTES = 1 << 18
ATTEMPTS = 5  # in a row without a new byte; a connection that brings some starts the count again
MAX_PAUSE_S = 8.0
_RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_NETWORK_ERRORS = (OSError, http.client.HTTPException)


class Progress(Protocol):
    """Who is told how a download goes."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A transfer starts; total_bytes is None while it is looked up, and where nobody says."""

    def update(self, done_bytes: int) -> None:
        """So many bytes of it are there now, those of earlier runs included."""

    def note(self, message: str) -> None:
        """One line that a person should read."""

    def end(self) -> None:
        """The transfer is over, complete or not."""


class Silent:
    """A Progress that says nothing."""

    def begin(self, label: str, total_bytes: int | None) -> None: ...

    def update(self, done_bytes: int) -> None: ...

    def note(self, message: str) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Transport:
    """How to reach servers.

    Attributes:
        ca_file: certificate authorities to trust instead of the system's.
        proxy: for http and https instead of the environment's.
        headers: sent with each request but never to another host that it redirects to.
        timeout_s: for connecting, and for each read.
        pause: sleeps between attempts.
    """

    ca_file: str | None = None
    proxy: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    pause: Callable[[float], None] = time.sleep

    def open(self, url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
        """GET url. Raises OSError (URLError, HTTPError, timeouts) or http.client.HTTPException."""
        plain, authorization = _split_credentials(url)
        request = urllib.request.Request(plain, headers=dict(headers or {}))
        for name, value in self.headers.items():
            # Unredirected: a token for one host must not travel to the storage host it redirects to.
            request.add_unredirected_header(name, value)
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        context = ssl.create_default_context(cafile=self.ca_file)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        response: http.client.HTTPResponse = urllib.request.build_opener(*handlers).open(
            request, timeout=self.timeout_s
        )
        return response


def root_cause(error: BaseException) -> str:
    """The innermost reason of an exception chain, in one line."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = error.reason if isinstance(error, urllib.error.URLError) else None
        inner = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
        if inner is None or id(inner) in seen:
            break
        error = inner
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def local_path(url: str) -> Path | None:
    """The path of a file:// URL on this machine; None for any other URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(urllib.request.url2pathname(parts.path))


def part_bytes(target: Path) -> int:
    """How much of target an interrupted download has left."""
    part = _part_of(target)
    return part.stat().st_size if part.exists() else 0


def check_space(name: str, needed_bytes: int, folder: Path) -> None:
    """Raises DownloadError if the file system of folder, which is made, has no room for so many more bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadError(
            f"{name} needs {needed_bytes / 1e6:.0f} MB of disk space and {folder} has {free_bytes / 1e6:.0f} MB; "
            "make room, or name another folder with OCTAVO_MODELS"
        )


def fetch_file(
    url: str,
    target: Path,
    *,
    size_bytes: int | None = None,
    sha256: str | None = None,
    transport: Transport | None = None,
    on_bytes: Callable[[int], None] = lambda done: None,
) -> str:
    """Download url to target, going on from `target.part` if there is one; return the file's SHA-256 (hex).

    size_bytes, sha256: what the file must have, where known. on_bytes is told how many bytes are there.
    A connection that breaks is taken up again where it broke, a few times.
    Raises DownloadError: the server cannot be reached or refuses, or what came is not what was asked.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    transfer = _Transfer(url, target, size_bytes, transport or Transport(), on_bytes)
    resumed = transfer.load_part()
    transfer.run()
    digest = transfer.hasher.hexdigest()
    if sha256 is not None and digest != sha256 and resumed:
        # The old bytes may have been of another version of the file: once more, from the start.
        transfer.restart()
        transfer.run()
        digest = transfer.hasher.hexdigest()
    if sha256 is not None and digest != sha256:
        transfer.part.unlink(missing_ok=True)
        raise DownloadError(f"{_shown(url)} has SHA-256 {digest}, expected {sha256}; nothing was kept, try again")
    os.replace(transfer.part, target)
    return digest


class _Transfer:
    """The bytes of one URL on their way into `target.part`."""

    def __init__(
        self, url: str, target: Path, size: int | None, transport: Transport, on_bytes: Callable[[int], None]
    ) -> None:
        self.url, self.size, self.transport, self.on_bytes = url, size, transport, on_bytes
        self.part = _part_of(target)
        self.hasher = hashlib.sha256()
        self.done = 0

    def load_part(self) -> bool:
        """Take over what an earlier run left; False if that is nothing."""
        if not self.part.exists():
            return False
        if self.size is not None and self.part.stat().st_size > self.size:
            self.restart()
            return False
        with self.part.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self._count(chunk)
        return self.done > 0

    def restart(self) -> None:
        self.part.unlink(missing_ok=True)
        self.hasher, self.done = hashlib.sha256(), 0

    def run(self) -> None:
        """Read until the file is whole. Raises DownloadError."""
        failures = 0
        while self.size is None or self.done < self.size or not self.part.exists():
            before = self.done
            try:
                if self._attempt():
                    return
                error: Exception = ConnectionError(f"the connection broke after {self.done} bytes")
            except urllib.error.HTTPError as refusal:
                refusal.close()
                if refusal.code not in _RETRIED_STATUS:
                    raise _failure(self.url, f"HTTP {refusal.code} {refusal.reason}") from refusal
                error = refusal
            except _LocalError as trouble:
                raise DownloadError(f"cannot write {self.part}: {root_cause(trouble)}") from trouble
            except _NETWORK_ERRORS as trouble:
                error = trouble
            failures = 0 if self.done > before else failures + 1
            if failures >= ATTEMPTS or _hopeless(error):
                raise _failure(self.url, root_cause(error)) from error
            self.transport.pause(min(0.5 * 2**failures, MAX_PAUSE_S))

    def _attempt(self) -> bool:
        """One request; True if the file is whole after it."""
        headers = {"Range": f"bytes={self.done}-"} if self.done else {}
        try:
            response = self.transport.open(self.url, headers)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 416:
                raise
            refusal.close()  # what is there does not fit what the server has
            self.restart()
            return False
        with response:
            expected = self._start(response)
            self._receive(response)
        if self.size is not None and self.done > self.size:
            self.restart()
            raise _failure(self.url, f"it is longer than the {self.size} bytes expected")
        whole = self.size if self.size is not None else expected
        return whole is None or self.done == whole

    def _receive(self, response: http.client.HTTPResponse) -> None:
        """Append the body to the part; what came before a break is kept."""
        with _writing(), self.part.open("ab") as file:
            while True:
                try:
                    chunk = response.read(CHUNK_BYTES)
                except _NETWORK_ERRORS as error:
                    raise _NetworkError(error) from error
                if not chunk:
                    return
                file.write(chunk)
                self._count(chunk)

    def _start(self, response: http.client.HTTPResponse) -> int | None:
        """Check where the body starts; return the whole file's length if the server says it."""
        length = response.headers.get("Content-Length")
        if self.done and getattr(response, "status", None) == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if span is None or int(span[1]) != self.done:
                self.restart()
                raise ConnectionError("the server sent another range than the one asked for")
            return int(span[2]) if span[2].isdigit() else None
        if self.done:
            self.restart()  # the server knows no ranges and sends it all
        return int(length) if length and length.isdigit() else None

    def _count(self, chunk: bytes) -> None:
        self.hasher.update(chunk)
        self.done += len(chunk)
        self.on_bytes(self.done)


class _LocalError(Exception):
    """Writing failed on this machine; trying the network again would not help."""


class _NetworkError(Exception):
    """Reading failed while a file was open for writing; carries the network's error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Tell apart, among OSErrors, those of the disk from those of the network."""
    try:
        yield
    except OSError as error:
        raise _LocalError from error
    except _NetworkError as error:
        raise error.error from None


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _hopeless(error: Exception) -> bool:
    """Certificate trouble and unknown hosts do not go away by trying again."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, ssl.SSLCertVerificationError | ConnectionRefusedError | FileNotFoundError) or (
        type(reason).__name__ == "gaierror"
    )


def _failure(url: str, cause: str) -> DownloadError:
    return DownloadError(f"cannot download {_shown(url)}: {cause}")


def _shown(url: str) -> str:
    """The URL without credentials, query and fragment: fit for a message."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def _split_credentials(url: str) -> tuple[str, str | None]:
    """https://user:secret@host/... -> the URL without them, and the header that carries them."""
    parts = urllib.parse.urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    credentials, host = parts.netloc.rsplit("@", 1)
    token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), f"Basic {token}"
