"""A small HTTP server on the loopback interface: files with ranges, connections that break, a hub, a package index."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["Web", "serve", "write_wheel"]


@dataclass
class Web:
    """What the server has and what it was asked.

    Attributes:
        pages: path without query -> body.
        redirects: path -> URL.
        statuses: path -> statuses to answer with before the page, each once.
        cuts: path -> after how many body bytes the connection breaks, each once.
        ranges: whether Range requests are honoured.
        requests: (path, headers with lower-case names) as they came.
    """

    url: str = ""
    pages: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def asked(self, path: str) -> list[dict[str, str]]:
        """The headers of the requests for a path."""
        return [headers for where, headers in self.requests if where == path]

    def add_hub_repository(self, repo: str, files: Mapping[str, bytes], licence: str = "apache-2.0") -> None:
        """The endpoints of a hub for one repository: its description, and its files at one commit."""
        siblings = [
            {
                "rfilename": path,
                "size": len(body),
                "blobId": "0" * 40,
                "lfs": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130},
            }
            for path, body in files.items()
        ]
        commit = hashlib.sha1(repo.encode()).hexdigest()
        info = {"id": repo, "sha": commit, "siblings": siblings, "tags": ["gguf", f"license:{licence}"]}
        self.pages[f"/api/models/{repo}"] = json.dumps(info).encode()
        for path, body in files.items():
            self.pages[f"/{repo}/resolve/{commit}/{path}"] = body

    def add_project(self, wheel: Path, with_hash: bool = True) -> None:
        """A wheel and its project's page, as PEP 503 lays them out under /simple/."""
        body = wheel.read_bytes()
        digest = f"#sha256={hashlib.sha256(body).hexdigest()}" if with_hash else ""
        project = wheel.name.split("-")[0].replace("_", "-").lower()
        self.pages[f"/files/{wheel.name}"] = body
        link = f'<!DOCTYPE html><a href="../../files/{wheel.name}{digest}">{wheel.name}</a><br/>'
        self.pages[f"/simple/{project}/"] = link.encode()


@contextlib.contextmanager
def serve() -> Iterator[Web]:
    """A server that runs while the context lasts."""
    web = Web()

    class Handler(_Handler):
        pass

    Handler.web = web
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.web.requests.append((path, {name.lower(): value for name, value in self.headers.items()}))
        queued = self.web.statuses.get(path)
        if queued:
            self._answer(queued.pop(0), b"")
        elif path in self.web.redirects:
            self._answer(302, b"", {"Location": self.web.redirects[path]})
        elif path not in self.web.pages:
            missing = {"X-Error-Code": "RepoNotFound"} if path.startswith("/api/models/") else {}
            self._answer(404, b"", missing)
        else:
            self._page(path, self.web.pages[path])

    def _page(self, path: str, body: bytes) -> None:
        kind = {"Content-Type": "application/json" if path.startswith("/api/") else "text/html"}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if self.web.ranges else None
        if wanted is None:
            self._answer(200, body, kind, path)
        elif int(wanted[1]) >= len(body):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
        else:
            start = int(wanted[1])
            span = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            self._answer(206, body[start:], kind | span, path)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, path: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.web.cuts.get(path)
        if cuts:
            self.wfile.write(body[: cuts.pop(0)])
            self.close_connection = True
            return
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def write_wheel(folder: Path, project: str, version: str, members: Mapping[str, bytes]) -> Path:
    """A wheel that pip accepts, whose package would fail if it were imported."""
    stem = project.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    texts = {
        f"{stem}/__init__.py": b"raise SystemExit('this code must never run')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    everything = texts | {f"{stem}/{name}": body for name, body in members.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in everything.items():
            archive.writestr(name, body)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in everything))
    return path
