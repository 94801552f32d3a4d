"""`octavo serve` as a process of its own, as users start it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Served", "serve_process"]


@dataclass
class Served:
    """A server that runs in another process. announced: its lines at start. log: where its standard error goes."""

    process: subprocess.Popen[str]
    url: str
    announced: list[str]
    log: Path

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def resident_bytes(self) -> int:
        """Memory that it holds now, pages of files not counted (Linux)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None, text
        return 1024 * int(found[1])


@contextlib.contextmanager
def serve_process(folder: Path, *arguments: object, **environment: str) -> Iterator[Served]:
    """`octavo serve ARGUMENTS` on a free port, once its model is loaded; killed in the end if it has not ended."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "octavo", "serve", *map(str, arguments), "--port", "0"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines = [""]
            while not lines[-1].startswith("serving"):
                lines.append(process.stdout.readline().rstrip())
                assert lines[-1], f"it did not start: {log.read_text()}"
            yield Served(process, lines[-1].split()[-1], lines[1:], log)
        finally:
            if process.poll() is None:
                process.kill()
