r"""Exact nearest neighbours by a k-d tree whose leaves are vectors.

Rows are halved along their widest column until at most ``BLOCK`` are left; a leaf's rows lie
column by column in memory, so that their distances from a query are a few vector operations. A
query walks down the nearer side first and leaves out every box that is farther away than the
k-th neighbour found so far, so that the result is exact. If no box can be left out (many columns),
it is a fast search through all rows. Of rows at equal distance the smaller row number comes first.
"""

# mypy: disable-error-code="no-untyped-def, misc, no-any-return, no-untyped-call"

from __future__ import annotations

import numpy as np

from twostagegp.engines.neighbors.compiled.compiling import compiled
from twostagegp.engines.neighbors.compiled.lanes import BLOCK, LANES
from twostagegp.engines.neighbors.compiled.loops import block_distances, box_distances

__all__ = ["build", "leaf_of", "search"]

_euclidean, _manhattan = block_distances[False], block_distances[True]
_box_euclidean, _box_manhattan = box_distances[False], box_distances[True]

#: Rows of a node from which its widest column is estimated.
_SAMPLE = 256
#: Most queries of the same leaf that walk the tree together, so that boxes and rows are read from
#: memory once for all of them.
TOGETHER = 16


@compiled
def _select(values, order, low, high, middle):
    """Reorder ``order[low:high]`` so that ``values`` left of ``middle`` are not larger.

    Pivots are taken at pseudo-random places. At fixed places the time would grow with the square of
    the number of rows for sorted rows with a few more after them, as an update leaves them.
    """
    high -= 1
    number = 1
    while high > low:
        size = high - low + 1
        number = number * 48271 % 2147483647
        x = values[order[low + number % size]]
        number = number * 48271 % 2147483647
        y = values[order[low + number % size]]
        number = number * 48271 % 2147483647
        z = values[order[low + number % size]]
        pivot = max(min(x, y), min(max(x, y), z))
        i, j = low, high
        while i <= j:
            while values[order[i]] < pivot:
                i += 1
            while values[order[j]] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@compiled
def _widest(columns, order, low, high):
    step = max(1, (high - low) // _SAMPLE)
    widest, spread = 0, -1.0
    for c in range(columns.shape[0]):
        smallest = largest = columns[c, order[low]]
        for i in range(low, high, step):
            value = columns[c, order[i]]
            smallest = min(smallest, value)
            largest = max(largest, value)
        if largest - smallest > spread:
            widest, spread = c, largest - smallest
    return widest


@compiled
def build(columns, depth, order, ends, boxes, leaf_boxes, leaves):
    """Fill a tree.

    Parameters
    ----------
    columns : (d, n) inputs, column by column
    depth : int
        At least 3. Of the 2^(depth+1) - 1 nodes, node v has the children 2v + 1 and 2v + 2.
    order : (n,) int32, row numbers; sorted into leaves
    ends : (nodes, 2), each node's part of ``order``
    boxes : (nodes, 2, d), smallest and largest value of each column
    leaf_boxes : (2^(depth-3), d, 2, LANES), the same of leaves, eight at a time, lane by lane
    leaves : (2^depth, d, BLOCK), inputs leaf by leaf, column by column; padded by infinity
    """
    d, n = columns.shape
    first = 2**depth - 1
    ends[0, 0], ends[0, 1] = 0, n
    for v in range(first):
        low, high = ends[v]
        middle = (low + high) // 2
        if high - low > 1:
            _select(columns[_widest(columns, order, low, high)], order, low, high, middle)
        ends[2 * v + 1, 0], ends[2 * v + 1, 1] = low, middle
        ends[2 * v + 2, 0], ends[2 * v + 2, 1] = middle, high
    for leaf in range(2**depth):
        low, high = ends[first + leaf]
        for c in range(d):
            smallest, largest = np.inf, -np.inf
            for i in range(BLOCK):
                value = np.inf
                if low + i < high:
                    value = columns[c, order[low + i]]
                    smallest = min(smallest, value)
                    largest = max(largest, value)
                leaves[leaf, c, i] = value
            boxes[first + leaf, 0, c], boxes[first + leaf, 1, c] = smallest, largest
            leaf_boxes[leaf // LANES, c, 0, leaf % LANES] = smallest
            leaf_boxes[leaf // LANES, c, 1, leaf % LANES] = largest
    for v in range(first - 1, -1, -1):
        for c in range(d):
            boxes[v, 0, c] = min(boxes[2 * v + 1, 0, c], boxes[2 * v + 2, 0, c])
            boxes[v, 1, c] = max(boxes[2 * v + 1, 1, c], boxes[2 * v + 2, 1, c])


@compiled
def _box_distance(box, q, manhattan):
    total = 0.0
    for c in range(q.size):
        gap = max(box[0, c] - q[c], q[c] - box[1, c], 0.0)
        total += gap if manhattan else gap * gap
    return total


@compiled
def _hull_distance(box, hull, manhattan):
    total = 0.0
    for c in range(hull.shape[1]):
        gap = max(box[0, c] - hull[1, c], hull[0, c] - box[1, c], 0.0)
        total += gap if manhattan else gap * gap
    return total


@compiled
def leaf_of(queries, boxes, depth, manhattan, leaf):
    """Find the leaf nearest to each query; queries sorted by leaf share the cache."""
    for r in range(queries.shape[0]):
        v = 0
        for _ in range(depth):
            left = _box_distance(boxes[2 * v + 1], queries[r], manhattan)
            right = _box_distance(boxes[2 * v + 2], queries[r], manhattan)
            v = 2 * v + 1 if left <= right else 2 * v + 2
        leaf[r] = v


@compiled
def _sink(distance, row, size, d, r):
    """Replace the farthest entry of the heap, its top, by (d, r), and restore the heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and (
            distance[child + 1] > distance[child]
            or (distance[child + 1] == distance[child] and row[child + 1] > row[child])
        ):
            child += 1
        if distance[child] < d or (distance[child] == d and row[child] < r):
            break
        distance[at], row[at] = distance[child], row[child]
        at = child
    distance[at], row[at] = d, r


@compiled
def _search_leaf(
    q, leaf, low, count, order, leaves, manhattan, own, groups, own_group, before, found, row, D
):
    """Put those rows of a leaf into the heap that are nearer than the neighbours found so far."""
    d, k = q.size, found.size
    start = leaf * d * BLOCK
    if manhattan:
        mask = _manhattan(leaves, start, d, q, found[0], D)
    else:
        mask = _euclidean(leaves, start, d, q, found[0], D)
    i = 0
    while mask != 0 and i < count:
        if mask & 1 and D[i] <= found[0]:
            r = np.int64(order[low + i])
            left_out = r == own or (groups.size > 0 and groups[r] == own_group)
            if before >= 0:  # groups are positions in an order: only earlier rows are found
                left_out = groups[r] >= before
            if not left_out and (D[i] < found[0] or r < row[0]):
                _sink(found, row, k, D[i], r)
        mask >>= 1
        i += 1


@compiled
def search(
    queries,
    leaf_of_query,
    order,
    ends,
    boxes,
    leaf_boxes,
    leaves,
    depth,
    manhattan,
    own,
    groups,
    own_group,
    ordered,
    budget,
    bound,
    out,
    distance,
):
    """Find the nearest rows of each query, nearest first; -1 fills up.

    Parameters
    ----------
    queries : (m, d), sorted by ``leaf_of_query``
    leaf_of_query : (m,) int64, from :func:`leaf_of`
    own : (m,) int64, a row to leave out for the query, or -1
    groups : (n,) int64, or empty
    own_group : (m,) int64, a group whose rows are left out for the query, or -1
    ordered : bool
        ``groups`` are positions in an order, and only rows with a position below ``own_group`` are
        found.
    budget : int
        Most leaves that are searched for a query; below their number the search is approximate.
    bound : (m,)
        Rows farther away than this (squared, except for L1) are not found; infinity for no bound.
    out : (m, k) int32
        Filled with the row numbers.
    distance : (m, k)
        Filled with their distances, squared except for L1, and with infinity beyond the last row.
    """
    k, d = out.shape[1], queries.shape[1]
    first_leaf, first_group = 2**depth - 1, 2 ** (depth - 3) - 1
    flat_leaves, flat_boxes = leaves.reshape(-1), leaf_boxes.reshape(-1)
    found, row = np.empty((TOGETHER, k)), np.empty((TOGETHER, k), np.int64)
    D, gaps, looked = np.empty(BLOCK), np.empty((TOGETHER, LANES)), np.empty(TOGETHER, np.int64)
    visit, done = np.empty(LANES), np.empty(LANES, np.bool_)
    hull, centre = np.empty((2, d)), np.empty(d)
    waiting = np.empty(depth + 2, np.int64)
    last = np.int64(2**62)
    begin = together = 0
    while begin + together < queries.shape[0]:
        begin += together
        together = 1
        while (
            together < TOGETHER
            and begin + together < queries.shape[0]
            and leaf_of_query[begin + together] == leaf_of_query[begin]
        ):
            together += 1
        for c in range(d):
            hull[0, c], hull[1, c], centre[c] = np.inf, -np.inf, 0.0
            for m in range(together):
                value = queries[begin + m, c]
                hull[0, c], hull[1, c] = min(hull[0, c], value), max(hull[1, c], value)
                centre[c] += value / together
        for m in range(together):
            looked[m] = 0
            for i in range(k):
                found[m, i], row[m, i] = bound[begin + m], last
        n_waiting = 1
        waiting[0] = 0
        while n_waiting > 0:
            n_waiting -= 1
            v = waiting[n_waiting]
            farthest = 0.0
            for m in range(together):
                if looked[m] < budget:
                    farthest = max(farthest, found[m, 0])
            # The factor keeps a box that holds a row at exactly this distance, despite rounding.
            if _hull_distance(boxes[v], hull, manhattan) * (1.0 - 1e-12) > farthest:
                continue
            while v < first_group:
                left = _box_distance(boxes[2 * v + 1], centre, manhattan)
                right = _box_distance(boxes[2 * v + 2], centre, manhattan)
                waiting[n_waiting] = 2 * v + 2 if left <= right else 2 * v + 1
                n_waiting += 1
                v = 2 * v + 1 if left <= right else 2 * v + 2
            group = v - first_group
            place = group * d * 2 * LANES
            for l in range(LANES):
                visit[l], done[l] = np.inf, False
            for m in range(together):
                if manhattan:
                    _box_manhattan(flat_boxes, place, d, queries[begin + m], gaps[m])
                else:
                    _box_euclidean(flat_boxes, place, d, queries[begin + m], gaps[m])
                for l in range(LANES):
                    visit[l] = min(visit[l], gaps[m, l])
            for _ in range(LANES):
                best = -1
                for l in range(LANES):
                    if not done[l] and (best < 0 or visit[l] < visit[best]):
                        best = l
                done[best] = True
                leaf = group * LANES + best
                low, high = ends[first_leaf + leaf]
                for m in range(together):
                    if (
                        gaps[m, best] * (1.0 - 1e-12) <= found[m, 0]
                        and low < high
                        and looked[m] < budget
                    ):
                        looked[m] += 1
                        _search_leaf(
                            queries[begin + m], leaf, low, high - low, order, flat_leaves,
                            manhattan, own[begin + m], groups, own_group[begin + m],
                            own_group[begin + m] if ordered else -1, found[m], row[m], D,
                        )  # fmt: skip
        for m in range(together):
            for size in range(k - 1, -1, -1):
                none = row[m, 0] == last
                out[begin + m, size] = -1 if none else row[m, 0]
                distance[begin + m, size] = np.inf if none else found[m, 0]
                if size > 0:
                    _sink(found[m], row[m], size, found[m, size], row[m, size])
