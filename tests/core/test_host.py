"""Host facts from laid-out /proc and /sys trees: cgroups v1 and v2, hardware threads, quotas, hosts that say little."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.cgroup import CgroupLimits, cgroup_limits
from octavo.core.errors import ConfigError
from octavo.core.host import Cache, NumaNode, default_threads, host_facts, parse_cpu_list

GB = 10**9
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return root


def smt_host(cores: int) -> dict[str, str]:
    """Each core has two hardware threads: CPU c and CPU c + cores."""
    files = {"sys/devices/system/cpu/online": f"0-{2 * cores - 1}"}
    for cpu in range(2 * cores):
        core = cpu % cores
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{core},{core + cores}"
    return files


def v2(group: str, levels: dict[str, dict[str, str]], mount: str = V2_MOUNT) -> dict[str, str]:
    files = {"proc/self/cgroup": f"0::{group}", "proc/self/mountinfo": mount}
    for level, entries in levels.items():
        for name, text in entries.items():
            files[f"sys/fs/cgroup/{level}/{name}".replace("//", "/")] = text
    return files


class TestCores:
    def test_hardware_threads_count_once(self, tmp_path: Path) -> None:
        facts = host_facts(lay_out(tmp_path, smt_host(4)), affinity=range(8))
        assert (facts.cpus, facts.allowed_cpus, facts.allowed_cores) == (8, 8, 4)

    def test_affinity_on_both_threads_of_two_cores(self, tmp_path: Path) -> None:
        facts = host_facts(lay_out(tmp_path, smt_host(4)), affinity=[0, 4, 1, 5])
        assert facts.allowed_cores == 2
        choice = default_threads(facts, {})
        assert choice.threads == 2
        assert "affinity allows 4 of 8 CPUs" in choice.reason

    def test_older_kernels_name_it_thread_siblings(self, tmp_path: Path) -> None:
        files = {f"sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list": "0-1" for c in (0, 1)}
        assert host_facts(lay_out(tmp_path, files), affinity=[0, 1]).allowed_cores == 1

    def test_unknown_topology_counts_cpus(self, tmp_path: Path) -> None:
        assert host_facts(tmp_path, affinity=[0, 1, 2]).allowed_cores == 3

    @given(st.integers(1, 16), st.data())
    def test_cores_never_exceed_cpus(self, tmp_path_factory: pytest.TempPathFactory, cores: int, data) -> None:
        root = lay_out(tmp_path_factory.mktemp("host"), smt_host(cores))
        allowed = data.draw(st.sets(st.integers(0, 2 * cores - 1), min_size=1))
        facts = host_facts(root, affinity=allowed)
        assert facts.allowed_cores == len({cpu % cores for cpu in allowed})
        assert 1 <= default_threads(facts, {}).threads <= len(allowed)


class TestQuota:
    @pytest.mark.parametrize(
        ("cpu_max", "threads"),
        [("100000 100000", 1), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("1600000 100000", 8)],
    )
    def test_v2_rounds_up_and_never_below_one(self, tmp_path: Path, cpu_max: str, threads: int) -> None:
        files = {**smt_host(8), **v2("/", {"": {"cpu.max": cpu_max}})}
        facts = host_facts(lay_out(tmp_path, files), affinity=range(16))
        choice = default_threads(facts, {})
        assert choice.threads == threads
        assert ("quota" in choice.reason) == (threads < 8)

    def test_the_tightest_level_counts(self, tmp_path: Path) -> None:
        levels = {"": {"cpu.max": "max 100000"}, "a": {"cpu.max": "300000 100000"}, "a/b": {"cpu.max": "800000 100000"}}
        assert cgroup_limits(lay_out(tmp_path, v2("/a/b", levels))).cpus == 3.0

    def test_v1(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job/step",
            "proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/job/step/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/job/step/cpu.cfs_period_us": "100000",
        }
        assert cgroup_limits(lay_out(tmp_path, files)).cpus == 2.5


class TestMemoryLimits:
    def test_v2_walks_up_and_counts_page_cache_as_free(self, tmp_path: Path) -> None:
        levels = {
            "pod": {
                "memory.max": str(4 * GB),
                "memory.current": str(3 * GB),
                "memory.stat": f"anon 5\ninactive_file {GB}\nactive_file {GB}",
            },
            "pod/box": {"memory.max": "max", "memory.current": "17"},
        }
        limits = cgroup_limits(lay_out(tmp_path, v2("/pod/box", levels)))
        assert limits == CgroupLimits(None, 4 * GB, 3 * GB)

    def test_least_room_may_sit_on_another_level_than_the_least_limit(self, tmp_path: Path) -> None:
        levels = {
            "a": {"memory.max": str(8 * GB), "memory.current": str(7 * GB)},
            "a/b": {"memory.max": str(4 * GB), "memory.current": "0"},
        }
        limits = cgroup_limits(lay_out(tmp_path, v2("/a/b", levels)))
        assert (limits.memory_bytes, limits.memory_available_bytes) == (4 * GB, GB)

    @pytest.mark.parametrize(("text", "limit"), [("9223372036854771712", None), (str(2 * GB), 2 * GB)])
    def test_v1(self, tmp_path: Path, text: str, limit: int | None) -> None:
        files = {
            "proc/self/cgroup": "5:cpuset:/\n4:memory:/job",
            "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": text,
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GB),
            "sys/fs/cgroup/memory/job/memory.stat": f"cache 1\ninactive_file 7\ntotal_inactive_file {GB // 2}",
        }
        limits = cgroup_limits(lay_out(tmp_path, files))
        assert limits.memory_bytes == limit
        assert limits.memory_available_bytes == (None if limit is None else limit - GB // 2)

    def test_a_container_sees_the_lower_part_of_the_tree(self, tmp_path: Path) -> None:
        mount = "32 31 0:29 /docker/c1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
        levels = {"": {"memory.max": str(3 * GB)}, "sub": {"memory.max": str(2 * GB)}}
        assert cgroup_limits(lay_out(tmp_path / "a", v2("/docker/c1/sub", levels, mount))).memory_bytes == 2 * GB
        assert cgroup_limits(lay_out(tmp_path / "b", v2("/docker/c1", levels, mount))).memory_bytes == 3 * GB
        assert cgroup_limits(lay_out(tmp_path / "c", v2("/other", levels, mount))).memory_bytes == 3 * GB

    def test_a_group_outside_the_namespace_is_read_at_the_mount(self, tmp_path: Path) -> None:
        limits = cgroup_limits(lay_out(tmp_path, v2("/../../x", {"": {"memory.max": str(GB)}})))
        assert limits.memory_bytes == GB

    @pytest.mark.parametrize("text", ["", "x", "max", "-1", "1 2 3", "\x00"])
    def test_nonsense_is_no_limit(self, tmp_path: Path, text: str) -> None:
        levels = {"": {"memory.max": text, "cpu.max": text}}
        limits = cgroup_limits(lay_out(tmp_path, v2("/", levels)))
        assert limits.memory_bytes is None
        assert limits.cpus is None or text.startswith("1")

    @given(st.binary(max_size=300), st.binary(max_size=300))
    def test_any_bytes_in_proc_are_survived(self, tmp_path_factory, cgroup: bytes, mountinfo: bytes) -> None:
        root = tmp_path_factory.mktemp("host")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_bytes(cgroup)
        (root / "proc/self/mountinfo").write_bytes(b"1 2 3 / / rw - cgroup2 x rw\n" + mountinfo)
        (root / "proc/cpuinfo").write_bytes(mountinfo)
        (root / "proc/meminfo").write_bytes(cgroup)
        host_facts(root, affinity=[0])


class TestFacts:
    def test_memory_is_the_least_of_machine_and_limit(self, tmp_path: Path) -> None:
        files = {
            **v2("/", {"": {"memory.max": str(2 * GB), "memory.current": "0"}}),
            "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nHugePages_Free: 3\nHugepagesize: 2048 kB",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        }
        facts = host_facts(lay_out(tmp_path, files), affinity=[0])
        assert facts.memory_total_bytes == 8_000_000 * 1024
        assert facts.memory_available_bytes == 4_000_000 * 1024
        assert facts.usable_memory_bytes == 2 * GB
        assert (facts.huge_page_bytes, facts.huge_pages_free) == (2 << 20, 3)
        assert facts.transparent_huge_pages == "madvise"

    def test_x86_flags(self, tmp_path: Path) -> None:
        text = (
            "processor\t: 0\nmodel name\t: Fast CPU: 9000\nflags\t\t: fpu avx2 fma f16c avx512f avx512_vnni amx_int8\n"
        )
        facts = host_facts(
            lay_out(tmp_path, {"proc/cpuinfo": text + "\n" + text.replace("Fast", "Slow")}), affinity=[0]
        )
        assert facts.cpu_model == "Fast CPU: 9000"
        assert facts.isa == ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "amx_int8")

    def test_arm_features(self, tmp_path: Path) -> None:
        text = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd40\n\nModel\t\t: Board 5"
        facts = host_facts(lay_out(tmp_path, {"proc/cpuinfo": text}), affinity=[0])
        assert facts.isa == ("neon", "neon_dotprod", "neon_i8mm")
        assert facts.cpu_model == "Board 5"

    def test_caches_and_nodes(self, tmp_path: Path) -> None:
        files = {}
        for index, (level, kind, size, shared) in enumerate(
            [(3, "Unified", "32M", "0-7"), (1, "Data", "32K", "0"), (2, "Unified", "1024K", "0,8")]
        ):
            folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
            files |= {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size}
            files[f"{folder}/shared_cpu_list"] = shared
        files["sys/devices/system/node/node0/cpulist"] = "0-7"
        files["sys/devices/system/node/node0/meminfo"] = "Node 0 MemTotal:        1000 kB\nNode 0 MemFree:  10 kB"
        files["sys/devices/system/node/node1/cpulist"] = ""
        facts = host_facts(lay_out(tmp_path, files), affinity=[0])
        assert facts.caches == (
            Cache(1, "data", 32 << 10, 1),
            Cache(2, "unified", 1 << 20, 2),
            Cache(3, "unified", 32 << 20, 8),
        )
        assert facts.numa == (NumaNode(0, tuple(range(8)), 1_024_000), NumaNode(1, (), None))

    def test_an_empty_machine_degrades(self, tmp_path: Path) -> None:
        facts = host_facts(tmp_path, affinity=[0])
        assert facts.isa == ()
        assert facts.caches == facts.numa == ()
        assert facts.usable_memory_bytes is None
        assert facts.memory_total_bytes is None
        assert default_threads(facts, {}).threads == 1

    def test_the_real_machine(self) -> None:
        facts = host_facts()
        assert 1 <= facts.allowed_cores <= facts.allowed_cpus <= facts.cpus
        assert json.loads(json.dumps(facts.as_dict()))["allowed_cores"] == facts.allowed_cores


class TestThreads:
    def test_the_variable_wins_and_says_so(self, tmp_path: Path) -> None:
        facts = host_facts(lay_out(tmp_path, smt_host(2)), affinity=range(4))
        assert default_threads(facts, {"OCTAVO_THREADS": "1"}) == (1, "OCTAVO_THREADS=1")
        many = default_threads(facts, {"OCTAVO_THREADS": "9"})
        assert many.threads == 9
        assert "more than the 2 physical cores" in many.reason

    def test_a_bad_variable_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="OCTAVO_THREADS='many'"):
            default_threads(host_facts(tmp_path, affinity=[0]), {"OCTAVO_THREADS": "many"})


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,8", (0, 1, 2, 8)), ("", ()), ("3", (3,)), ("x,1", (1,)), ("5-3", ()), ("0-99999999999", ()), (" 1\n", (1,))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
