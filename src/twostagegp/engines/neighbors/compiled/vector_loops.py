r"""The innermost loops as LLVM vector instructions. The only module that uses Numba's internals.

Each function does on :data:`~twostagegp.engines.neighbors.compiled.lanes.LANES` problems at once
what ``plain_loops.py`` does in ordinary Numba. Compilers do not find these vectors by themselves.
Arrays are flat, offsets count doubles.

``numba.core`` and the compiler's ``context`` are not part of Numba's documented interface, so
``loops.py`` imports this module only with versions of Numba that it was tried with.
"""

# mypy: disable-error-code="no-untyped-def, misc, no-any-return, no-untyped-call, type-arg"

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from twostagegp.engines.neighbors.compiled.lanes import (
    BLOCK,
    DEGREE,
    FAR,
    LANES,
    SERIES,
    SQUARES,
)

__all__ = [
    "block_distances",
    "box_distances",
    "covariances_and_slopes",
    "differences",
    "eliminate",
    "eliminate_pair",
    "exponential_covariances",
    "pivot",
    "slope_weights",
    "weighted_squares",
]

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(64)
_FLAGS = ("contract", "reassoc", "nsz", "arcp")
_OFFSET = types.intp


class _Writer:
    """The LLVM instructions that the loops below are made of."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.b = context, builder

    def data(self, kind: Any, value: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.b, value).data

    def _pointer(self, data: Any, offset: Any) -> Any:
        return self.b.bitcast(self.b.gep(data, [offset]), _VECTOR.as_pointer())

    def load(self, data: Any, offset: Any) -> Any:
        return self.b.load(self._pointer(data, offset), align=8)

    def store(self, data: Any, offset: Any, value: Any) -> None:
        self.b.store(value, self._pointer(data, offset), align=8)

    def rows(self, first: Any, stride: Any, count: int) -> list[Any]:
        b = self.b
        return [b.add(first, b.mul(stride, _INDEX(r))) for r in range(count)]

    def variable(self, value: Any) -> Any:
        return cgutils.alloca_once_value(self.b, value)

    def accumulate(self, variable: Any, x: Any, y: Any, sign: int) -> None:
        """Add sign * x * y to the variable, as one fused operation."""
        b = self.b
        product = b.fmul(x, y, flags=_FLAGS)
        change = b.fadd if sign > 0 else b.fsub
        b.store(change(b.load(variable), product, flags=_FLAGS), variable)

    def steps(self, stop: Any) -> Any:
        """Loop over offsets 0, LANES, 2 LANES, ... below ``stop``."""
        return cgutils.for_range_slice(self.b, _INDEX(0), stop, _INDEX(LANES), intp=_INDEX)

    def call(self, name: str, value: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        function = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v{LANES}f64")
        return self.b.call(function, [value])

    def constant(self, value: float) -> Any:
        return ir.Constant(_VECTOR, [value] * LANES)

    def smaller(self, x: Any, limit: float) -> Any:
        """Return the smaller of each lane and a number."""
        bound = self.constant(limit)
        return self.b.select(self.b.fcmp_ordered("<", x, bound), x, bound)

    def times(self, x: Any, y: Any) -> Any:
        return self.b.fmul(x, y, flags=_FLAGS)

    def plus(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y, flags=_FLAGS)

    def exp_minus(self, x: Any) -> Any:
        """Return exp(-x) for 0 <= x <= FAR: a series, then repeated squaring."""
        u = self.times(x, self.constant(-1.0 / 2**SQUARES))
        p = self.constant(1.0 / math.factorial(SERIES))
        for n in range(SERIES - 1, -1, -1):
            p = self.plus(self.times(p, u), self.constant(1.0 / math.factorial(n)))
        for _ in range(SQUARES):
            p = self.times(p, p)
        return p

    def spread(self, scalar: Any) -> Any:
        """Return a vector with the same number in every lane."""
        one = self.b.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _INDEX(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.b.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)


@intrinsic
def eliminate(typingctx, K, row, pivot_row, column):
    """Compute one entry of the Cholesky factor: L_ij = (K_ij - sum_p<j L_ip L_jp) / L_jj.

    ``K[pivot_row + column]`` holds 1 / L_jj.
    """
    signature = types.void(K, _OFFSET, _OFFSET, _OFFSET)

    def codegen(context, builder, sig, args):
        w = _Writer(context, builder)
        data = w.data(sig.args[0], args[0])
        row, pivot_row, column = args[1:]
        place = builder.add(row, column)
        total = w.variable(w.load(data, place))
        with w.steps(column) as (p, _):
            x = w.load(data, builder.add(pivot_row, p))
            w.accumulate(total, x, w.load(data, builder.add(row, p)), -1)
        inverse = w.load(data, builder.add(pivot_row, column))
        w.store(data, place, builder.fmul(builder.load(total), inverse))
        return context.get_dummy_value()

    return signature, codegen


def _eliminate_pair(count: int) -> Any:
    @intrinsic
    def loop(typingctx, K, first, stride, pivot_row, column):
        signature = types.void(K, _OFFSET, _OFFSET, _OFFSET, _OFFSET)

        def codegen(context, builder, sig, args):
            w = _Writer(context, builder)
            data = w.data(sig.args[0], args[0])
            first, stride, pivot_row, column = args[1:]
            b = builder
            # The width of a row is the distance of two rows.
            next_row, next_column = b.add(pivot_row, stride), b.add(column, _INDEX(LANES))
            rows = w.rows(first, stride, count)
            left = [w.variable(w.load(data, b.add(row, column))) for row in rows]
            right = [w.variable(w.load(data, b.add(row, next_column))) for row in rows]
            with w.steps(column) as (p, _):
                x, y = w.load(data, b.add(pivot_row, p)), w.load(data, b.add(next_row, p))
                for row, one, two in zip(rows, left, right, strict=True):
                    value = w.load(data, b.add(row, p))
                    w.accumulate(one, x, value, -1)
                    w.accumulate(two, y, value, -1)
            inverse = w.load(data, b.add(pivot_row, column))
            next_inverse = w.load(data, b.add(next_row, next_column))
            between = w.load(data, b.add(next_row, column))
            for row, one, two in zip(rows, left, right, strict=True):
                value = b.fmul(b.load(one), inverse)
                w.store(data, b.add(row, column), value)
                w.accumulate(two, between, value, -1)
                w.store(data, b.add(row, next_column), b.fmul(b.load(two), next_inverse))
            return context.get_dummy_value()

        return signature, codegen

    return loop


#: ``eliminate_pair[c](K, first, stride, pivot_row, column)``: :func:`eliminate` for c rows and two
#: columns at once, ``column`` and the next, whose pivots are known; ``stride`` is the width of a
#: row.
eliminate_pair = {count: _eliminate_pair(count) for count in (1, 4)}


@intrinsic
def pivot(typingctx, K, row, column):
    """Set K[row + column] to 1 / sqrt(K_jj - sum_p<j L_jp^2), the inverse of the factor's diagonal.

    If a matrix is not positive definite, the result is NaN, in its own lane only.
    """
    signature = types.void(K, _OFFSET, _OFFSET)

    def codegen(context, builder, sig, args):
        w = _Writer(context, builder)
        data = w.data(sig.args[0], args[0])
        row, column = args[1:]
        place = builder.add(row, column)
        total = w.variable(w.load(data, place))
        with w.steps(column) as (p, _):
            x = w.load(data, builder.add(row, p))
            w.accumulate(total, x, x, -1)
        root = w.call("sqrt", builder.load(total))
        w.store(data, place, builder.fdiv(w.constant(1.0), root))
        return context.get_dummy_value()

    return signature, codegen


def _differences(count: int, absolute: bool) -> Any:
    @intrinsic
    def loop(typingctx, X, first, stride, other, size, D, out, out_stride):
        signature = types.void(X, _OFFSET, _OFFSET, _OFFSET, _OFFSET, D, _OFFSET, _OFFSET)

        def codegen(context, builder, sig, args):
            w = _Writer(context, builder)
            data, result = w.data(sig.args[0], args[0]), w.data(sig.args[5], args[5])
            first, stride, other, size = args[1:5]
            rows = w.rows(first, stride, count)
            sums = [w.variable(w.constant(0.0)) for _ in rows]
            with w.steps(size) as (p, _):
                x = w.load(data, builder.add(other, p))
                for row, total in zip(rows, sums, strict=True):
                    u = builder.fsub(w.load(data, builder.add(row, p)), x)
                    if absolute:
                        change = builder.fadd(builder.load(total), w.call("fabs", u))
                        builder.store(change, total)
                    else:
                        w.accumulate(total, u, u, 1)
            for place, total in zip(w.rows(args[6], args[7], count), sums, strict=True):
                w.store(result, place, builder.load(total))
            return context.get_dummy_value()

        return signature, codegen

    return loop


#: ``differences[c, absolute](X, first, stride, other, size, D, out, out_stride)``: distances of
#: c rows from one other row, squared Euclidean or (absolute) L1; ``size`` is columns x LANES.
differences = {
    (count, absolute): _differences(count, absolute)
    for count in (1, 4)
    for absolute in (False, True)
}


def _block_distances(absolute: bool) -> Any:
    @intrinsic
    def loop(typingctx, P, start, n_columns, q, limit, D):
        signature = types.int64(P, _OFFSET, _OFFSET, q, types.float64, D)

        def codegen(context, builder, sig, args):
            w = _Writer(context, builder)
            data, query = w.data(sig.args[0], args[0]), w.data(sig.args[3], args[3])
            result = w.data(sig.args[5], args[5])
            n_columns, limit = args[2], w.spread(args[4])
            count = BLOCK // LANES
            sums = [w.variable(w.constant(0.0)) for _ in range(count)]
            with cgutils.for_range(builder, n_columns, intp=_INDEX) as column:
                x = w.spread(builder.load(builder.gep(query, [column.index])))
                begin = builder.add(args[1], builder.mul(column.index, _INDEX(BLOCK)))
                for part, total in zip(w.rows(begin, _INDEX(LANES), count), sums, strict=True):
                    u = builder.fsub(w.load(data, part), x)
                    if absolute:
                        change = builder.fadd(builder.load(total), w.call("fabs", u))
                        builder.store(change, total)
                    else:
                        w.accumulate(total, u, u, 1)
            mask = _INDEX(0)
            for part, total in enumerate(sums):
                value = builder.load(total)
                w.store(result, _INDEX(part * LANES), value)
                below = builder.fcmp_ordered("<=", value, limit)
                bits = builder.zext(builder.bitcast(below, ir.IntType(LANES)), _INDEX)
                mask = builder.or_(mask, builder.shl(bits, _INDEX(part * LANES)))
            return mask

        return signature, codegen

    return loop


#: ``block_distances[absolute](P, start, n_columns, q, limit, D)``: write the distances of the BLOCK
#: points of one leaf from q into D; return an integer whose bit i is set if D[i] <= ``limit``.
block_distances = {absolute: _block_distances(absolute) for absolute in (False, True)}


def _box_distances(absolute: bool) -> Any:
    @intrinsic
    def loop(typingctx, boxes, start, n_columns, q, D):
        signature = types.void(boxes, _OFFSET, _OFFSET, q, D)

        def codegen(context, builder, sig, args):
            w = _Writer(context, builder)
            data, query = w.data(sig.args[0], args[0]), w.data(sig.args[3], args[3])
            result = w.data(sig.args[4], args[4])
            zero = w.constant(0.0)
            total = w.variable(zero)
            with cgutils.for_range(builder, args[2], intp=_INDEX) as column:
                x = w.spread(builder.load(builder.gep(query, [column.index])))
                place = builder.add(args[1], builder.mul(column.index, _INDEX(2 * LANES)))
                below = builder.fsub(w.load(data, place), x)
                above = builder.fsub(x, w.load(data, builder.add(place, _INDEX(LANES))))
                gap = builder.select(builder.fcmp_ordered(">", below, above), below, above)
                gap = builder.select(builder.fcmp_ordered(">", gap, zero), gap, zero)
                if absolute:
                    builder.store(builder.fadd(builder.load(total), gap), total)
                else:
                    w.accumulate(total, gap, gap, 1)
            w.store(result, _INDEX(0), builder.load(total))
            return context.get_dummy_value()

        return signature, codegen

    return loop


#: ``box_distances[absolute](boxes, start, n_columns, q, D)``: write the distances of q from LANES
#: boxes into D; the boxes' smallest and largest values lie column by column.
box_distances = {absolute: _box_distances(absolute) for absolute in (False, True)}


def _weighted_squares(count: int, absolute: bool) -> Any:
    @intrinsic
    def loop(typingctx, M, row, size, X, point, stride, column, G):
        signature = types.void(M, _OFFSET, _OFFSET, X, _OFFSET, _OFFSET, _OFFSET, G)

        def codegen(context, builder, sig, args):
            w = _Writer(context, builder)
            weights, data = w.data(sig.args[0], args[0]), w.data(sig.args[3], args[3])
            result = w.data(sig.args[7], args[7])
            row, size, point, stride, column = args[1], args[2], args[4], args[5], args[6]
            columns = w.rows(column, _INDEX(LANES), count)
            own = [w.load(data, builder.add(point, c)) for c in columns]
            sums = [w.variable(w.load(result, c)) for c in columns]
            with cgutils.for_range(builder, size, intp=_INDEX) as j:
                weight = w.load(weights, builder.add(row, builder.mul(j.index, _INDEX(LANES))))
                other = builder.mul(j.index, stride)
                for c, x, total in zip(columns, own, sums, strict=True):
                    u = builder.fsub(x, w.load(data, builder.add(other, c)))
                    u = w.call("fabs", u) if absolute else builder.fmul(u, u, flags=_FLAGS)
                    w.accumulate(total, weight, u, 1)
            for c, total in zip(columns, sums, strict=True):
                w.store(result, c, builder.load(total))
            return context.get_dummy_value()

        return signature, codegen

    return loop


#: ``weighted_squares[c, absolute](M, row, size, X, point, stride, column, G)``: for c columns,
#: G_k += sum_j M_ij (x_ik - x_jk)^2, or the absolute difference, over the first ``size`` points.
weighted_squares = {
    (count, absolute): _weighted_squares(count, absolute)
    for count in (1, 4)
    for absolute in (False, True)
}


@intrinsic
def exponential_covariances(typingctx, K, start, size, variant, factor, a1, a2, a3, s):
    """Turn distances D (squared, except for L1) into covariances s p(x) exp(-x), in place.

    x is ``factor`` times D, or the square root of that, and p(x) = 1 + a1 x + a2 x^2 + a3 x^3.
    ``variant`` is the degree of p, plus ``DEGREE + 1`` for the root.
    """
    number = types.float64
    signature = types.void(K, _OFFSET, _OFFSET, _OFFSET, number, number, number, number, number)

    def codegen(context, builder, sig, args):
        w = _Writer(context, builder)
        data = w.data(sig.args[0], args[0])
        start, size, variant = args[1:4]
        factor, a1, a2, a3, outputscale = (w.spread(value) for value in args[4:])
        end = builder.append_basic_block("covariances.end")
        cases = builder.switch(variant, end)
        for root in (False, True):
            for degree in range(DEGREE + 1):
                block = builder.append_basic_block(f"covariances.{root}.{degree}")
                cases.add_case(_INDEX(degree + (DEGREE + 1) * root), block)
                builder.position_at_end(block)
                with w.steps(size) as (p, _):
                    place = builder.add(start, p)
                    x, value = w.times(w.load(data, place), factor), outputscale
                    x = w.smaller(w.call("sqrt", x) if root else x, FAR)
                    if degree > 0:
                        total = (a1, a2, a3)[degree - 1]
                        for a in (a1, a2, a3)[: degree - 1][::-1]:
                            total = w.plus(w.times(total, x), a)
                        total = w.plus(w.times(total, x), w.constant(1.0))
                        value = w.times(value, total)
                    w.store(data, place, w.times(value, w.exp_minus(x)))
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def covariances_and_slopes(typingctx, D, K, start, size, kind, numbers, by_distance):
    """Fill K with covariances and replace distances D by the kernel's slopes, with one exponential.

    ``numbers`` are f, a1, a2, a3, b1, b2, s and s g of the kernel's
    :class:`~twostagegp.kernels.catalogue.ExponentialForm`. ``kind`` is 0 for x = f D, 1 for its
    square root, and 2 for a root whose slope is divided by x. With ``by_distance`` the slopes are
    multiplied by the distances.
    """
    signature = types.void(D, K, _OFFSET, _OFFSET, _OFFSET, numbers, types.boolean)

    def codegen(context, builder, sig, args):
        w = _Writer(context, builder)
        distances, covariances = w.data(sig.args[0], args[0]), w.data(sig.args[1], args[1])
        start, size, kind = args[2:5]
        f, a1, a2, a3, b1, b2, s, g = (
            w.spread(value) for value in cgutils.unpack_tuple(builder, args[5])
        )
        by_distance = context.cast(builder, args[6], types.boolean, types.boolean)
        one = w.constant(1.0)
        end = builder.append_basic_block("slopes.end")
        cases = builder.switch(kind, end)
        for number in range(3):
            block = builder.append_basic_block(f"slopes.{number}")
            cases.add_case(_INDEX(number), block)
            builder.position_at_end(block)
            with w.steps(size) as (p, _):
                place = builder.add(start, p)
                distance = w.load(distances, place)
                x = w.times(distance, f)
                x = w.smaller(w.call("sqrt", x) if number > 0 else x, FAR)
                e = w.exp_minus(x)
                value = w.plus(w.times(w.plus(w.times(a3, x), a2), x), a1)
                value = w.times(w.plus(w.times(value, x), one), w.times(e, s))
                w.store(covariances, place, value)
                slope = w.plus(w.times(w.plus(w.times(b2, x), b1), x), one)
                slope = w.times(slope, w.times(e, g))
                if number == 2:
                    # At distance zero the product with the difference vanishes anyway.
                    tiny = w.constant(1e-100)
                    above = builder.fcmp_ordered(">", x, tiny)
                    slope = builder.fdiv(slope, builder.select(above, x, tiny))
                factor = builder.select(by_distance, distance, one)
                w.store(distances, place, w.times(slope, factor))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def slope_weights(typingctx, P, M, place, size, a, w, point):
    """Set M_ij = P_ij (a_i w_j + a_j w_i) for j < i, and return the sum over j and all lanes.

    ``place`` is the offset of row i of P and M, ``point`` that of a_i and w_i, ``size`` is
    i x LANES.
    """
    signature = types.float64(P, M, _OFFSET, _OFFSET, a, w, _OFFSET)

    def codegen(context, builder, sig, args):
        v = _Writer(context, builder)
        slopes, out = v.data(sig.args[0], args[0]), v.data(sig.args[1], args[1])
        a, w = v.data(sig.args[4], args[4]), v.data(sig.args[5], args[5])
        row, size, point = args[2], args[3], args[6]
        own_a, own_w = v.load(a, point), v.load(w, point)
        total = v.variable(v.constant(0.0))
        with v.steps(size) as (p, _):
            place = builder.add(row, p)
            both = v.plus(v.times(own_a, v.load(w, p)), v.times(own_w, v.load(a, p)))
            value = v.times(both, v.load(slopes, place))
            v.store(out, place, value)
            builder.store(v.plus(builder.load(total), value), total)
        lanes = builder.load(total)
        result = builder.extract_element(lanes, _INDEX(0))
        for lane in range(1, LANES):
            result = builder.fadd(result, builder.extract_element(lanes, _INDEX(lane)))
        return result

    return signature, codegen
