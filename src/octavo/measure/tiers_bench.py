"""The wait for the first token of a long prompt: computed, found in memory, and found on disk after a restart.

In turn, each time with a new prompt in an empty directory:

    cold   a model just loaded computes the prompt
    ram    the same prompt again
    warm   the model is closed and loaded again; the files of the prefix cache are still in memory (the page cache)
    disk   the same, but the kernel has been made to let go of these files, so that they are read from the disk

Whether it did is measured and reported: a file system may not know how, and a virtual machine's disk may be cached by
its host all the same.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from statistics import median
from typing import Any

from octavo.core.config import DEFAULT_BLOCK_SIZE
from octavo.core.errors import ConfigError, RequestError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.llm import LLM
from octavo.engine.setup import Log
from octavo.formats.references import resolve
from octavo.measure.files import drop_cached, file_system, files_below, read_all, resident_fraction, total_bytes
from octavo.measure.neighbours import Neighbours
from octavo.measure.report import Report
from octavo.measure.rig import Needs, open_rig, until_interrupted
from octavo.measure.spread import Spread, ratios
from octavo.measure.workloads import random_tokens, stream

__all__ = ["TIERS", "TiersBench", "bench_tiers"]

TIERS = ("cold", "ram", "warm", "disk")
# Of each answer: all tiers must give the same.
ANSWER_TOKENS = 8
# Shorter than any page, so nothing of it is kept.
WARM_UP_TOKENS = 8
# Where the files would be in memory whatever is done.
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class TiersBench:
    """What to run.

    prompt_tokens: of the long prompt. dir: a folder on the disk to measure; a new one is made in it, and deleted at the
    end; None: where the system keeps temporary files. repeats: prompts.

    Raises ConfigError: a value is below 1, or there is no such folder.
    """

    prompt_tokens: int = 4000
    dir: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    repeats: int = 3
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.prompt_tokens <= self.block_size:
            raise ConfigError(
                f"prompt_tokens {self.prompt_tokens} must be above block_size {self.block_size}: whole pages are kept"
            )
        if self.dir is not None and not Path(self.dir).is_dir():
            raise ConfigError(f"there is no folder {self.dir} (dir)")


@dataclass(frozen=True)
class _Round:
    """One prompt in all tiers.

    ttft_s: seconds to its first token, by tier. disk_tokens, cached_tokens: prompt tokens from disk, and from disk or
    memory. resident: share of the files that was in memory, before "warm" and "disk". file_bytes: what was written.
    close_s: seconds to close the first model, which ends the writing. raw_s: to read the same files from the disk and
    do nothing with them.
    """

    ttft_s: dict[str, float]
    cached_tokens: dict[str, int]
    disk_tokens: dict[str, int]
    resident: dict[str, float | None]
    file_bytes: int
    close_s: float
    raw_s: float


def bench_tiers(model: str | PathLike[str], bench: TiersBench, *, log: Log = lambda line: None) -> Report:
    """Measure a model, which is loaded three times for each prompt. Ctrl-C ends that; finished prompts are reported.

    Raises ModelError, ConfigError (the model's context or the memory is too small, or the folder cannot be written to).
    """
    path = resolve(fspath(model))
    rig = open_rig(path, _needs(bench))
    report, vocab, page_bytes = rig.report(bench, []), rig.vocab, rig.page_bytes
    del rig  # its weights and pages; what is measured is loaded anew
    neighbours = Neighbours()
    rounds: list[_Round] = []
    with _folder(bench) as folder, until_interrupted() as until:
        report.host["file_system"] = file_system(folder)
        for repeat in range(bench.repeats):
            place = folder / str(repeat)
            place.mkdir()
            prompt = random_tokens(stream(bench.seed, repeat), bench.prompt_tokens, vocab)
            rounds.append(_round(path, bench, prompt, place))
            log(f"repeat {repeat + 1} of {bench.repeats}: {_times(rounds[-1])}")
    report.interrupted = until.interrupted
    if rounds:
        report.rows = [*(_row(tier, rounds, bench, page_bytes) for tier in TIERS), _files_row(rounds)]
        report.notes = _notes(rounds, report.host)
    neighbours.tell(report)
    return report


def _needs(bench: TiersBench) -> Needs:
    length = bench.prompt_tokens + ANSWER_TOKENS
    return Needs(
        max_model_len=length,
        kv_tokens=length + 2 * bench.block_size,
        lower="--prompt-tokens",
        max_num_seqs=1,
        block_size=bench.block_size,
        threads=bench.threads,
        seed=bench.seed,
    )


@contextmanager
def _folder(bench: TiersBench) -> Iterator[Path]:
    """A new folder, deleted at the end."""
    where = bench.dir or tempfile.gettempdir()
    try:
        made = tempfile.TemporaryDirectory(prefix="octavo-bench-", dir=where)
    except OSError as error:
        raise ConfigError(f"cannot make a folder in {where} (--dir): {error.strerror}") from error
    with made as name:
        yield Path(name)


def _round(path: Path, bench: TiersBench, prompt: list[int], place: Path) -> _Round:
    found: dict[str, RequestOutput] = {}
    resident: dict[str, float | None] = {}
    with _loaded(path, bench, place) as llm:
        found["cold"] = _ask(llm, prompt)
        found["ram"] = _ask(llm, prompt)
        start = time.perf_counter()
    close_s = time.perf_counter() - start
    files = files_below(place)
    for tier in ("warm", "disk"):
        if tier == "disk":
            drop_cached(files)
        resident[tier] = resident_fraction(files)
        with _loaded(path, bench, place) as llm:
            found[tier] = _ask(llm, prompt)
    drop_cached(files)
    if len({tuple(output.outputs[0].token_ids) for output in found.values()}) > 1:
        raise RequestError("one prompt got different answers from different tiers, which must not be; please report it")
    return _Round(
        ttft_s={tier: output.metrics.first_token_s or 0.0 for tier, output in found.items()},
        cached_tokens={tier: output.metrics.cached_prompt_tokens for tier, output in found.items()},
        disk_tokens={tier: output.metrics.disk_prompt_tokens for tier, output in found.items()},
        resident=resident,
        file_bytes=total_bytes(files),
        close_s=close_s,
        raw_s=read_all(files),
    )


@contextmanager
def _loaded(path: Path, bench: TiersBench, place: Path) -> Iterator[LLM]:
    """The model, loaded anew, with its code and weights touched once."""
    needs = _needs(bench)
    with LLM(
        path,
        max_model_len=needs.max_model_len,
        max_num_seqs=1,
        block_size=bench.block_size,
        prefix_cache_dir=place,
        threads=bench.threads,
        seed=bench.seed,
        log=lambda line: None,
    ) as llm:
        _ask(llm, list(range(WARM_UP_TOKENS)))
        yield llm


def _ask(llm: LLM, prompt: list[int]) -> RequestOutput:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=ANSWER_TOKENS)
    return llm.generate([prompt], params)[0]


def _times(done: _Round) -> str:
    return ", ".join(f"{tier} {1e3 * seconds:.1f} ms" for tier, seconds in done.ttft_s.items())


def _row(tier: str, rounds: list[_Round], bench: TiersBench, page_bytes: int) -> dict[str, Any]:
    """One tier.

    ttft_ms: to the first token. speedup: of the time that "cold" took, prompt by prompt. load_gb_s: bytes of the pages
    that came from disk over the time that the first token came later than from memory, so checks and copies included.
    resident_fraction: of the files, in memory when it began; None: not a tier of the disk, or the system cannot tell.
    """
    own = [done.ttft_s[tier] for done in rounds]
    ttft, speedup = Spread.of([1e3 * seconds for seconds in own]), ratios([d.ttft_s["cold"] for d in rounds], own)
    resident = [share for done in rounds if (share := done.resident.get(tier)) is not None]
    later = [(done, done.ttft_s[tier] - done.ttft_s["ram"]) for done in rounds if done.disk_tokens[tier]]
    rates = [done.disk_tokens[tier] / bench.block_size * page_bytes / (1e9 * s) for done, s in later if s > 0]
    return {
        "tier": tier,
        "prompt_tokens": bench.prompt_tokens,
        "cached_tokens": median(done.cached_tokens[tier] for done in rounds),
        "disk_tokens": median(done.disk_tokens[tier] for done in rounds),
        "ttft_ms": None if ttft is None else ttft.as_json(),
        "speedup": None if speedup is None else speedup.as_json(),
        "load_gb_s": median(rates) if rates else None,
        "resident_fraction": median(resident) if resident else None,
    }


def _files_row(rounds: list[_Round]) -> dict[str, Any]:
    """What one prompt left on disk: bytes, seconds to close the model that wrote them, the disk's own read rate."""
    return {
        "tier": "files",
        "file_bytes": median(done.file_bytes for done in rounds),
        "close_s": median(done.close_s for done in rounds),
        "raw_gb_s": median(done.file_bytes / (1e9 * done.raw_s) for done in rounds),
    }


def _notes(rounds: list[_Round], host: dict[str, Any]) -> list[str]:
    notes = []
    if host["file_system"] in MEMORY_FILE_SYSTEMS:
        notes.append(f"the folder is on {host['file_system']}, which is memory; --dir names one on a disk")
    cold = [share for done in rounds if (share := done.resident["disk"]) is not None]
    if not cold:
        notes.append("this file system does not tell whether files are in memory, so `disk` may have read them there")
    elif max(cold) > 0:
        notes.append(f"before `disk`, up to {100 * max(cold):.0f} % of the files were still in memory")
    if not all(done.disk_tokens[tier] for done in rounds for tier in ("warm", "disk")):
        notes.append("after a restart, prompts were not found on disk")
    return notes
