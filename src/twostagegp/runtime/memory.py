"""How much memory there is to take."""

from __future__ import annotations

import torch

__all__ = ["available_bytes"]

#: Limit, use, statistics and the names in them of pages of files: cgroups v2 and v1.
_CGROUPS = (
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
#: Cgroups v1 say a number near 2^63 for no limit.
_NO_LIMIT = 1 << 60


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device; None where the system does not say."""
    if device.type == "cuda":
        # What torch has reserved and does not use can be had again.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    asked = (_system_bytes(), _container_bytes(), _process_bytes())
    known = [size for size in asked if size is not None]
    return min(known, default=None)


def _system_bytes() -> int | None:
    """What Linux says is available; other systems do not say, and are not asked."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _process_bytes() -> int | None:
    """What a limit of this process's address space (``ulimit -v``) leaves."""
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


def _container_bytes() -> int | None:
    """What a container's own limit leaves: the least of those that cgroups v2 and v1 name."""
    known = [left for group in _CGROUPS if (left := _cgroup_bytes(*group)) is not None]
    return min(known, default=None)


def _cgroup_bytes(limit: str, used: str, stat: str, cached: tuple[str, ...]) -> int | None:
    """Limit less use; pages of files in it are given back when memory is asked for."""
    try:
        most = int(_text(limit))  # v2 has the word max for no limit
        taken = int(_text(used))
    except (OSError, ValueError):
        return None
    if most >= _NO_LIMIT:
        return None
    return min(most, max(0, most - taken + _cached_bytes(stat, cached)))


def _cached_bytes(stat: str, cached: tuple[str, ...]) -> int:
    """Pages of files in memory; 0 where the system does not say."""
    try:
        entries = dict(line.split() for line in _text(stat).splitlines())
        return sum(int(entries.get(name, 0)) for name in cached)
    except (OSError, ValueError):
        return 0


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
