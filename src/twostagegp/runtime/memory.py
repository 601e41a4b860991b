"""The memory that is available to the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["CGROUPS", "available_bytes", "container_bytes"]

#: For cgroups v2 and v1: the files of the limit, the usage and the statistics, and the names of the
#: file cache in the statistics.
CGROUPS = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        ("inactive_file", "active_file"),
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def available_bytes(
    device: torch.device, measures: Sequence[Callable[[], int | None]] | None = None
) -> int | None:
    """Return the free memory of a device in bytes, or None if it is unknown.

    For a CPU it is the smallest value of ``measures``: the system, the container and the limit of
    this process.
    """
    if device.type == "cuda":
        # Memory that torch has reserved but does not use is available too.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    measures = (_system_bytes, container_bytes, _process_bytes) if measures is None else measures
    known = [size for measure in measures if (size := measure()) is not None]
    return min(known, default=None)


def _system_bytes() -> int | None:
    """Return the available memory of a Linux system; None on other systems."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _process_bytes() -> int | None:
    """Return what remains of the limit of this process's address space (``ulimit -v``)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
    return max(0, limit - used)


def container_bytes(
    groups: Sequence[tuple[str, str, str, tuple[str, ...]]] = CGROUPS,
) -> int | None:
    """Return what remains of a container's limit: the smaller value of cgroups v2 and v1."""
    known = [rest for group in groups if (rest := _cgroup_bytes(*group)) is not None]
    return min(known, default=None)


def _cgroup_bytes(limit: str, used: str, stat: str, cached: tuple[str, ...]) -> int | None:
    """Return the limit minus the usage; the file cache counts as free, as it can be evicted."""
    try:
        limit_bytes = int(_text(limit))  # without a limit, v2 has the word "max"
        used_bytes = int(_text(used))
    except (OSError, ValueError):
        return None
    if limit_bytes >= 1 << 60:  # cgroups v1 report a number near 2^63 if there is no limit
        return None
    free = limit_bytes - used_bytes + _cached_bytes(stat, cached)
    return min(limit_bytes, max(0, free))


def _cached_bytes(stat: str, cached: tuple[str, ...]) -> int:
    """Return the size of the file cache, or 0 if it is unknown."""
    try:
        entries = dict(line.split() for line in _text(stat).splitlines())
        return sum(int(entries.get(name, 0)) for name in cached)
    except (OSError, ValueError):
        return 0


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
