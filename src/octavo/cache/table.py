"""The pages of one sequence, and the books of the whole cache.

A `PageTable` belongs to one sequence. Pages at its start may be shared with others (a prefix hit or a fork); from
the first page on that it writes, they are its own. A page is only ever appended to, so whoever shares its first n
slots reads the same values while its owner fills the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.cache.radix import Node

if TYPE_CHECKING:
    from octavo.cache.loading import Load

__all__ = ["CacheUsage", "PageTable"]


@dataclass
class PageTable:
    """The pages of one sequence, in order of position.

    cached: tokens whose KV was there when the table was made, or has come from disk since; disk: the latter. loading:
    pages that are being read from disk: until `CacheManager.poll` says that they are here, nothing may be computed,
    extended, published or shared. copy: (source, target), a page to copy before the first step; the source is held
    until `copies_done`.
    published: pages at the start that the prefix tree names; cursor: the node of the last of them.
    """

    namespace: Hashable = None
    pages: array[int] = field(default_factory=lambda: array("i"))
    cached: int = 0
    copy: tuple[int, int] | None = None
    published: int = 0
    cursor: Node | None = None
    loading: Load | None = None
    disk: int = 0


@dataclass(frozen=True)
class CacheUsage:
    """Pages by state, and what prefix caching has saved. used + cached + free = the pool.

    pinned_pages: held by pins, and therefore among the used ones; where no sequence runs they are all of these.
    tree_nodes: pages that the prefix tree names, used or not. namespaces: of them. loading_pages: of the used ones,
    those that are being read from disk, for freed tables too. disk_tokens: of hit_tokens, those that came from disk.
    backlog_pages: cached pages that wait to be copied for the disk.
    """

    used_pages: int
    cached_pages: int
    free_pages: int
    queried_tokens: int
    hit_tokens: int
    evicted_pages: int
    pinned_pages: int
    tree_nodes: int
    namespaces: int
    loading_pages: int
    disk_tokens: int
    backlog_pages: int
