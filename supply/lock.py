"""Write the locks: every package that the tests need, at one version, with hashes of its files.

``supply/dev.lock`` is ``twostagegp[dev]`` for every platform and Python version: a line that is not
for all of them has a marker. It has the hashes of all files of a version, so that pip can check
whichever file it takes. torch's build for NVIDIA cards requires gigabytes of libraries that the
other builds do not use; these are in ``supply/cuda.lock``, and the Makefile installs them only if
the installed torch requires them.

torch is published twice under one version number: on the package index, for Linux with those
libraries, and by its authors as a build for CPUs, ``2.13.0+cpu``. ``supply/cpu.lock`` has the
hashes of the CPU builds that pip found when this program ran; a later run keeps them as long as
the version is the same. The Makefile tries this lock first, because pip prefers a file whose hash
the index states to a file in a folder, and would download gigabytes that nothing uses.

    make lock        # or, if uv is installed: python -m supply.lock

The locks name no index: pip looks where its configuration says, and the hashes decide.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["CPU", "CUDA", "DEV", "Lock", "main", "read_lock", "show", "split"]

ROOT = Path(__file__).parent.parent
DEV = ROOT / "supply" / "dev.lock"
CUDA = ROOT / "supply" / "cuda.lock"
CPU = ROOT / "supply" / "cpu.lock"
HEAD = "# Made by `make lock`; docs/dependencies.md says how it is used. Do not edit.\n"
_CUDA_NAMES = re.compile(r"nvidia-|cuda-|triton$")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_NAME = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)")

#: Maps a line such as ``torch==2.13.0`` or ``zipp==4.1 ; python_version < "3.12"`` to hashes.
Lock = dict[str, list[str]]


def read_lock(text: str) -> Lock:
    """Return the lines of a lock, each with its hashes.

    Examples
    --------
    >>> read_lock("zipp==4.1 ; python_version < '3.12' \\\\\\n    --hash=sha256:" + 64 * "0")
    {"zipp==4.1 ; python_version < '3.12'": ['sha256:000...000']}
    """
    whole = re.sub(r"#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line for line in whole.splitlines() if line.strip()]
    return {line.split("--hash")[0].strip(): _HASH.findall(line) for line in lines}


def show(lock: Lock) -> str:
    """Return the text of a lock, which `read_lock` reads."""
    entries = (" \\\n    ".join([line, *map("--hash={}".format, lock[line])]) for line in lock)
    return HEAD + "".join(f"{entry}\n" for entry in entries)


def split(lock: Lock) -> tuple[Lock, Lock]:
    """Return the packages that all builds need, and those of torch's build for NVIDIA cards.

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
    """Return ``("zipp", "4.1")`` for ``zipp==4.1 ; python_version < "3.12"``."""
    if not (found := _NAME.match(line)):
        raise SystemExit(f"{line!r} pins no version; expected a line such as torch==2.13.0.")
    return found["name"], found["version"]


def _resolve() -> Lock:
    """Ask uv for versions that are compatible on every platform, and for their hashes."""
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
        raise SystemExit(f"uv found no compatible versions:\n{done.stderr}")
    return read_lock(done.stdout)


def _offered_here(requirement: str) -> set[str]:
    """Return the hash of the file that pip downloads for a requirement; empty if it finds none."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, requirement], capture_output=True)
        files = [path.read_bytes() for path in Path(folder).iterdir()]
    return {f"sha256:{hashlib.sha256(data).hexdigest()}" for data in files}


def _for_cpus(lock: Lock) -> Lock:
    """Return the lock of torch for CPUs: the known hashes, and that of the file pip finds now."""
    pins = (f"{name}=={version}+cpu" for name, version in map(name_and_version, lock)
            if name == "torch")  # fmt: skip
    known = read_lock(CPU.read_text(encoding="utf-8")) if CPU.exists() else {}
    return {pin: sorted(_offered_here(pin).union(known.get(pin, []))) for pin in pins}


def main() -> None:
    """Write the locks."""
    lock = _resolve()
    for path, part in zip((DEV, CUDA, CPU), (*split(lock), _for_cpus(lock)), strict=True):
        path.write_text(show(part), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(part)} lines")


if __name__ == "__main__":
    main()
