"""How much memory there is to take."""

from __future__ import annotations

import torch

__all__ = ["available_bytes"]


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
    """What a container's own limit (cgroup v2) leaves."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            used = int(file.read())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
