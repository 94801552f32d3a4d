"""One URL into one file: whole, resumed, checked, or an error in one line."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.web import Web, serve
from octavo.core.errors import DownloadError
from octavo.formats.download import Transport, check_space, fetch_file, local_path, root_cause

BODY = random.Random(1).randbytes(1_500_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as server:
        server.pages["/file"] = BODY
        yield server


def transport(**fields: object) -> Transport:
    return Transport(pause=lambda seconds: None, timeout_s=5.0, **fields)  # type: ignore[arg-type]


def test_downloads_and_reports_progress(web: Web, tmp_path: Path) -> None:
    seen: list[int] = []
    target = tmp_path / "deep" / "file.bin"
    digest = fetch_file(web.url + "/file", target, transport=transport(), on_bytes=seen.append)
    assert (digest, target.read_bytes()) == (DIGEST, BODY)
    assert seen == sorted(seen)
    assert seen[-1] == len(BODY)
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("known", [True, False], ids=["size known", "size unknown"])
def test_a_broken_connection_is_taken_up_where_it_broke(web: Web, tmp_path: Path, known: bool) -> None:
    web.cuts["/file"] = [400_000, 300_000]
    size = len(BODY) if known else None
    assert fetch_file(web.url + "/file", tmp_path / "f", size_bytes=size, transport=transport()) == DIGEST
    ranges = [headers.get("range") for headers in web.asked("/file")]
    assert ranges == [None, "bytes=400000-", "bytes=700000-"]


def test_what_an_interrupted_run_left_is_used(web: Web, tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        if done > 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_file(web.url + "/file", tmp_path / "f", transport=transport(), on_bytes=interrupt)
    kept = (tmp_path / "f.part").stat().st_size
    assert 500_000 < kept < len(BODY)
    assert not (tmp_path / "f").exists()
    fetch_file(web.url + "/file", tmp_path / "f", sha256=DIGEST, transport=transport())
    assert web.asked("/file")[-1]["range"] == f"bytes={kept}-"
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize("old", [b"other" * 1000, BODY + b"more"], ids=["other bytes", "longer"])
def test_a_part_of_another_file_is_given_up(web: Web, tmp_path: Path, old: bytes) -> None:
    (tmp_path / "f.part").write_bytes(old)
    fetch_file(web.url + "/file", tmp_path / "f", sha256=DIGEST, transport=transport())
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_server_without_ranges_sends_it_all_again(web: Web, tmp_path: Path) -> None:
    web.ranges = False
    (tmp_path / "f.part").write_bytes(BODY[:1000])
    fetch_file(web.url + "/file", tmp_path / "f", transport=transport())
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_wrong_digest_is_an_error_and_nothing_stays(web: Web, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"has SHA-256 {DIGEST}, expected 00"):
        fetch_file(web.url + "/file", tmp_path / "f", sha256="00" * 32, transport=transport())
    assert list(tmp_path.iterdir()) == []


def test_a_longer_file_than_expected_is_an_error(web: Web, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="longer than the 1000 bytes expected"):
        fetch_file(web.url + "/file", tmp_path / "f", size_bytes=1000, transport=transport())


def test_busy_servers_are_asked_again_and_missing_files_are_not(web: Web, tmp_path: Path) -> None:
    web.statuses["/file"] = [503, 429]
    assert fetch_file(web.url + "/file", tmp_path / "f", transport=transport()) == DIGEST
    with pytest.raises(DownloadError, match="/none: HTTP 404"):
        fetch_file(web.url + "/none", tmp_path / "g", transport=transport())
    assert len(web.asked("/none")) == 1


def test_a_server_that_never_recovers_is_given_up(web: Web, tmp_path: Path) -> None:
    web.statuses["/file"] = [503] * 50
    with pytest.raises(DownloadError, match="HTTP Error 503"):
        fetch_file(web.url + "/file", tmp_path / "f", transport=transport())
    assert len(web.asked("/file")) < 10


def test_nothing_listens(tmp_path: Path) -> None:
    with serve() as gone:
        url = gone.url
    with pytest.raises(DownloadError, match=r"cannot download http.*Connection refused"):
        fetch_file(url + "/file", tmp_path / "f", transport=transport())


def test_a_token_does_not_follow_a_redirect(web: Web, tmp_path: Path) -> None:
    with serve() as hub:
        hub.redirects["/resolve"] = web.url + "/file"
        headers = {"Authorization": "Bearer secret"}
        fetch_file(hub.url + "/resolve", tmp_path / "f", transport=transport(headers=headers))
        assert hub.asked("/resolve")[0]["authorization"] == "Bearer secret"
    assert "authorization" not in web.asked("/file")[0]


def test_credentials_in_a_url_become_a_header_and_stay_out_of_messages(web: Web, tmp_path: Path) -> None:
    url = web.url.replace("//", "//me:se%20cret@")
    fetch_file(url + "/file", tmp_path / "f", transport=transport())
    assert web.asked("/file")[0]["authorization"] == "Basic bWU6c2UgY3JldA=="
    with pytest.raises(DownloadError) as caught:
        fetch_file(url + "/none?key=hidden", tmp_path / "g", transport=transport())
    assert "cret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_target_that_cannot_be_written_is_named(web: Web, tmp_path: Path) -> None:
    (tmp_path / "f.part").mkdir()
    with pytest.raises((DownloadError, IsADirectoryError)):
        fetch_file(web.url + "/file", tmp_path / "f", transport=transport())


def test_space_is_checked(tmp_path: Path) -> None:
    check_space("m", 1000, tmp_path / "new")
    with pytest.raises(DownloadError, match="OCTAVO_MODELS"):
        check_space("m", 1 << 60, tmp_path)


def test_file_urls() -> None:
    assert local_path("file:///a%20b/c.whl") == Path("/a b/c.whl")
    assert local_path("https://host/c.whl") is None


def test_root_cause_is_the_innermost_and_survives_loops() -> None:
    outer, inner = ValueError("outer"), OSError(5, "inner words")
    outer.__cause__ = inner
    inner.__context__ = outer
    assert root_cause(outer) == "inner words"
    assert root_cause(ValueError("a\nb")) == "a"
    assert root_cause(TimeoutError()) == "TimeoutError"
