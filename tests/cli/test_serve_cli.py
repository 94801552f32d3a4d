"""`octavo serve` as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx
import pytest

from helpers.servers import wait_until
from octavo.cli.serve import serve
from octavo.cli.sizes import size

OPTIONS = ["--port", "0", "--max-model-len", "512", "--kv-cache-memory", "4MiB", "--threads", "1"]


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server and its five lines."""
    command = [sys.executable, "-m", "octavo", "serve", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server, [server.stdout.readline().rstrip("\n") for _ in range(5)]
    finally:
        server.kill()
        server.wait()


def test_five_lines_one_for_each_request_and_a_graceful_end(tiny_gguf: Callable[..., Path]) -> None:
    """SIGTERM in the middle of a stream: it is finished, the exit status is 0."""
    path = str(tiny_gguf("llama", quant="Q8_0"))
    with process(f"little={path}", *OPTIONS) as (server, lines):
        assert [line.split()[0] for line in lines] == ["model", "format", "memory", "context", "serving"]
        assert "little" in lines[0]
        assert "Q8_0" in lines[1]
        assert "512 tokens" in lines[3]
        url = lines[4].split()[-1]
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None) as answer:
            events = answer.iter_lines()
            assert "assistant" in next(events)
            server.send_signal(signal.SIGTERM)
            assert [line for line in events if line][-1] == "data: [DONE]"
        assert server.wait(60) == 0
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.read() == ""
        (line,) = server.stderr.read().splitlines()
        assert "POST /v1/chat/completions status=200 model=little" in line
        assert "output=400" in line


def test_a_second_signal_ends_it_at_once(tiny_gguf: Callable[..., Path]) -> None:
    with process(str(tiny_gguf()), *OPTIONS, "--grace", "1000") as (server, lines):
        url = lines[4].split()[-1]
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 100}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as answer:
            events = answer.iter_lines()
            next(events)
            server.send_signal(signal.SIGINT)
            # Two signals at once may count as one.
            wait_until(lambda: httpx.get(f"{url}/health", timeout=None).status_code == 503)
            server.send_signal(signal.SIGINT)
            told = [line for line in events if line]
        assert server.wait(60) == 0
    assert '"aborted"' in told[-2]


def test_what_is_wrong_is_one_line(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    path = str(tiny_gguf())

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "octavo", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout == ""
        return done.returncode, done.stderr

    assert run(str(tmp_path / "no.gguf"), "--port", "0")[0] == 1
    code, told = run(path, "--port", "0", "--max-model-len", "100000")
    assert code == 1
    assert "max_model_len" in told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = run(path, "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "choose another --port" in told
    code, told = run(path, path, "--served-model-name", "x")
    assert code == 2
    assert "NAME=MODEL" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GB", 4 * 10**9), ("1.5g", 15 * 10**8), ("512MiB", 2**29), ("64 KiB", 2**16), ("1000", 1000), (7, 7)],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "4XB", "-1GB", "4GBB", "1e9", "4i"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        size(text)


def test_every_option_says_what_it_does() -> None:
    assert all(option.help for option in serve.params if isinstance(option, click.Option))
