"""The index of the disk tier: sizes add up; what goes next is the oldest page that no other page needs."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.disk_index import DiskIndex, Entry


def entry(name: str, parent: str, stamp: int, size: int = 1) -> Entry:
    return Entry(name.encode(), parent.encode(), name, size, stamp)


def drain(index: DiskIndex) -> list[str]:
    names = []
    while (victim := index.victim()) is not None:
        names.append(victim.name)
        index.check()
    return names


def test_oldest_first_children_before_parents() -> None:
    index = DiskIndex()
    for name, parent, stamp in [("a", "root", 1), ("b", "a", 2), ("c", "b", 3), ("x", "root", 4), ("y", "root", 2)]:
        index.add(entry(name, parent, stamp))
    assert drain(index) == ["y", "c", "b", "a", "x"]
    assert index.used_bytes == 0


def test_a_page_used_since_it_was_queued_waits_again() -> None:
    index = DiskIndex()
    first, second = entry("a", "root", 1), entry("b", "root", 2)
    index.add(first)
    index.add(second)
    first.stamp = 3
    assert drain(index) == ["b", "a"]


def test_children_may_come_before_their_parent() -> None:
    index = DiskIndex()
    index.add(entry("b", "a", 5))
    index.add(entry("a", "root", 1))
    assert drain(index) == ["b", "a"]


def test_files_of_other_versions_go_first() -> None:
    index = DiskIndex()
    index.add(entry("a", "root", 1, 8))
    index.add_stranger("old", 4)
    assert (len(index), index.used_bytes) == (1, 12)
    assert drain(index) == ["old", "a"]


def test_pages_removed_over_and_over_leave_nothing_behind() -> None:
    index = DiskIndex()
    index.add(entry("keep", "root", 0))
    for stamp in range(1000):
        page = entry("a", "root", stamp)
        index.add(page)
        index.remove(page)
    index.check()
    assert len(index._heap) < 100
    assert drain(index) == ["keep"]


@given(st.lists(st.tuples(st.sampled_from(["add", "touch", "remove", "victim"]), st.integers(0, 12)), max_size=60))
def test_against_a_list(ops: list[tuple[str, int]]) -> None:
    """Page n's parent is page (n - 1) // 2: a tree. The model keeps stamps in a dict and searches all of it."""
    index, model = DiskIndex(), dict[int, int]()
    for clock, (op, n) in enumerate(ops):
        found = index.get(bytes([n]))
        assert (found is not None) == (n in model)
        if op == "add" and found is None:
            index.add(Entry(bytes([n]), bytes([(n - 1) // 2 if n else 99]), str(n), n, clock))
            model[n] = clock
        elif op == "touch" and found is not None:
            found.stamp = model[n] = clock
        elif op == "remove" and found is not None:
            index.remove(found)
            del model[n]
        elif op == "victim":
            leaves = [page for page in model if 2 * page + 1 not in model and 2 * page + 2 not in model]
            expected = min(leaves, key=model.__getitem__, default=None)
            victim = index.victim()
            assert (victim and int(victim.name)) == expected
            if expected is not None:
                del model[expected]
        index.check()
        assert index.used_bytes == sum(model)
