"""Values that a hostile file puts where others belong, and changes to JSON made with them."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["change_bytes", "change_json", "dump", "places", "value"]

_PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, -(2**31), 2**53, 2**63, -(2**63), 2**64, 10**12,
    10**30, 0.0, -0.0, 0.5, -0.5, 1e-320, 1e-300, 1e300, -1e300, 1.7976931348623157e308,
    "", "x", "a0", "nan", "__import__('os').system('x')", "../../etc/passwd", "/etc/passwd",
    "\x00", "\ud800", "é" * 300, "rbf", "os.system", "=1+1", [], {}, [[]], [None], [{}],
)  # fmt: skip
_TAGGED: tuple[str, ...] = ("part", "array", "tensor", "float", "tuple", "dict", "texts", "device",
    "dtype", "frame", "time", "random_state", "kernel", "sklearn")  # fmt: skip


def value(draw: random.Random) -> Any:
    """Return a random hostile value."""
    kind = draw.random()
    if kind < 0.5:
        return copy.copy(draw.choice(_PLAIN))
    if kind < 0.58:
        return {"float": draw.choice(("nan", "inf", "-inf", "1", 1, []))}
    if kind < 0.72:
        return {"part": draw.randrange(-1, 60)}
    if kind < 0.86:
        reference = {draw.choice(("array", "tensor")): f"a{draw.randrange(40)}"}
        return reference | ({"order": draw.choice(("C", "F", 1))} if draw.random() < 0.3 else {})
    if kind < 0.92:
        return _nested(draw.choice((3, 30, 300, 900)), draw.random() < 0.5)
    return {draw.choice(_TAGGED): copy.copy(draw.choice(_PLAIN))}


def _nested(depth: int, in_lists: bool) -> str:
    """Return a mark for deeply nested lists, which Python could not copy; see :func:`dump`."""
    return f"@{'lists' if in_lists else 'tuples'} {depth}@"


def dump(tree: Any) -> bytes:
    """Return JSON text; NaN, infinities and marks of deep nesting are written out."""
    text = json.dumps(tree, separators=(",", ":"))

    def nest(match: re.Match[str]) -> str:
        depth = int(match[2])
        if match[1] == "lists":
            return "[" * depth + "1" + "]" * depth
        return '{"tuple":[' * depth + "1" + "]}" * depth

    return re.sub(r'"@(lists|tuples) (\d+)@"', nest, text).encode("utf-8", "surrogatepass")


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value inside a JSON value, leaves and containers."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, each in pairs:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def change_json(
    tree: Any, ways: list[tuple[Any, ...]], draw: random.Random, other: Any, other_ways: list[Any]
) -> Any:
    """Return a JSON value with one place changed; unchanged parts are shared, not copied.

    Parameters
    ----------
    tree, other : JSON values
        The one to change, and one to take pieces from.
    ways, other_ways : lists of paths
        :func:`places` of both.
    draw : random.Random
    """
    path = draw.choice(ways)
    made = copy.copy(tree)
    parent = made
    for key in path[:-1]:
        parent[key] = copy.copy(parent[key])
        parent = parent[key]
    _change(parent, path[-1], draw, lambda: _piece(draw, (tree, ways), (other, other_ways)))
    return made


def _piece(draw: random.Random, *sources: tuple[Any, list[Any]]) -> Any:
    tree, ways = draw.choice(sources)
    return _at(tree, draw.choice(ways))


def _change(parent: Any, key: Any, draw: random.Random, piece: Callable[[], Any]) -> None:
    kind = draw.random()
    if kind < 0.5:
        parent[key] = value(draw)
    elif kind < 0.6:
        del parent[key]
    elif kind < 0.9:
        parent[key] = piece()
    elif kind < 0.95 and isinstance(parent, list):
        parent.insert(key, draw.choice(parent))
    elif isinstance(parent, dict):
        parent[draw.choice(("__class__", "__init__", "__dict__", "x", "fitted_"))] = value(draw)
    else:
        parent[key] = [parent[key]] * draw.choice((0, 1, 2, 1000))


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes after a random change: flipped, cut, doubled, spliced or overwritten."""
    changed = bytearray(data)
    size = len(changed)
    begin = draw.randrange(size) if size else 0
    length = min(draw.choice((1, 1, 2, 4, 8, 64, 1024)), size - begin)
    kind = draw.randrange(7)
    if kind <= 1:
        for _ in range(draw.choice((1, 1, 2, 8))):
            if size:
                changed[draw.randrange(size)] ^= 1 << draw.randrange(8)
    elif kind == 2:
        del changed[begin:]
    elif kind == 3:
        del changed[begin : begin + length]
    elif kind == 4:
        changed[begin:begin] = changed[begin : begin + length] * draw.choice((1, 2, 100))
    elif kind == 5:
        filler = draw.choice((b"\x00", b"\xff", b"9", b"[", b'{"', b"\x7f"))
        changed[begin : begin + length] = filler * length
    else:
        changed += draw.randbytes(draw.choice((1, 16, 1000)))
    return bytes(changed)
