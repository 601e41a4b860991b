"""The locks: every package that the tests need, at one version, with the hashes of its files.

``supply/dev.lock`` is ``twostagegp[dev]`` for every platform and Python version at once: a line
that is not for all of them carries a marker. It holds the hashes of all the files of a version, so
that pip checks whichever it takes. The libraries that
torch asks for in its build for NVIDIA cards are gigabytes and of no use to the other builds; they
stand in ``supply/cuda.lock``, and the Makefile installs them where torch asks for them.

torch is published twice under one number: on the package index, for Linux with those libraries,
and by its authors as a build for CPUs, ``2.13.0+cpu``. ``supply/cpu.lock`` has the hashes of every
file of the second that a run of this program was offered; a later run keeps them for as long as
the version is the same. The Makefile tries it first, because pip, once it has hashes, prefers the
files whose hash the index states to those in a folder, and would take gigabytes for nothing.

    make lock        # or, where uv is installed: python -m supply.lock

No address of an index is written: pip looks where it is told to look, and the hashes decide.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._store import write_whole

__all__ = ["CPU", "CUDA", "DEV", "Lock", "main", "read_lock", "show", "split"]

ROOT = Path(__file__).parent.parent
DEV = ROOT / "supply" / "dev.lock"
CUDA = ROOT / "supply" / "cuda.lock"
CPU = ROOT / "supply" / "cpu.lock"
HEAD = "# Made by `make lock`; docs/dependencies.md says how it is used. Not to be edited.\n"
_CUDA_NAMES = re.compile(r"nvidia-|cuda-|triton$")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_NAME = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)")

#: From a line such as ``torch==2.13.0`` or ``zipp==4.1 ; python_version < "3.12"`` to hashes.
Lock = dict[str, list[str]]


def read_lock(text: str) -> Lock:
    """The lines of a lock, with the hashes of each.

    Examples
    --------
    >>> read_lock("zipp==4.1 ; python_version < '3.12' \\\\\\n    --hash=sha256:" + 64 * "0")
    {"zipp==4.1 ; python_version < '3.12'": ['sha256:000...000']}
    """
    whole = re.sub(r"#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line for line in whole.splitlines() if line.strip()]
    return {line.split("--hash")[0].strip(): _HASH.findall(line) for line in lines}


def show(lock: Lock) -> str:
    """The text of a lock, which `read_lock` reads."""
    entries = (" \\\n    ".join([line, *map("--hash={}".format, lock[line])]) for line in lock)
    return HEAD + "".join(f"{entry}\n" for entry in entries)


def split(lock: Lock) -> tuple[Lock, Lock]:
    """What everybody needs, and what only torch's build for NVIDIA cards asks for.

    Examples
    --------
    >>> split({"numpy==2.4": [], "nvidia-nccl-cu13==2.29": [], "triton==3.7": []})
    ({'numpy==2.4': []}, {'nvidia-nccl-cu13==2.29': [], 'triton==3.7': []})
    """
    parts: tuple[Lock, Lock] = ({}, {})
    for line, hashes in lock.items():
        parts[bool(_CUDA_NAMES.match(line.split("==")[0]))][line] = hashes
    return parts


def name_and_version(line: str) -> tuple[str, str]:
    """``("zipp", "4.1")`` of ``zipp==4.1 ; python_version < "3.12"``."""
    if not (found := _NAME.match(line)):
        raise SystemExit(f"{line!r} pins no version: a lock has lines such as torch==2.13.0.")
    return found["name"], found["version"]


def _resolve() -> Lock:
    """Ask uv for versions that fit together everywhere, and for the hashes of their files."""
    # fmt: off
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal",
        "--python-version", "3.11", "--constraint", "constraints.txt", "--generate-hashes",
        "--no-header", "--no-annotate", "--no-emit-package", "twostagegp",
        "--extra", "dev", "pyproject.toml",
    ]
    # fmt: on
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"uv found no versions that fit together:\n{done.stderr}")
    return read_lock(done.stdout)


def _offered_here(requirement: str) -> set[str]:
    """The hash of the file that pip takes for a requirement on this computer, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, requirement], capture_output=True)
        files = [path.read_bytes() for path in Path(folder).iterdir()]
    return {f"sha256:{hashlib.sha256(data).hexdigest()}" for data in files}


def _for_cpus(lock: Lock) -> Lock:
    """The build of torch for CPUs: the hashes that were known, and the one that is offered here."""
    pins = (f"{name}=={version}+cpu" for name, version in map(name_and_version, lock)
            if name == "torch")  # fmt: skip
    known = read_lock(CPU.read_text(encoding="utf-8")) if CPU.exists() else {}
    return {pin: sorted(_offered_here(pin).union(known.get(pin, []))) for pin in pins}


def main() -> None:
    """Write the locks."""
    lock = _resolve()
    for path, part in zip((DEV, CUDA, CPU), (*split(lock), _for_cpus(lock)), strict=True):
        write_whole(path, show(part))
        print(f"{path.relative_to(ROOT)}: {len(part)} lines")


if __name__ == "__main__":
    main()
