"""What numba does not offer for bytes: pointers, whole words, and sixteen bytes at once.

A kernel takes a pointer of each of its arrays once; everything below it is then given pointers,
which cost no reference counts and no tests for negative offsets. ``data`` is a pointer or an array
of bytes alike, and nothing here checks its size. Words are little-endian, like the machines.

Kernels take them from ``bytes_kernel``: this module imports the compiler.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_BLOCK = 16
_VECTOR = ir.VectorType(ir.IntType(8), _BLOCK)


def _address(context: Any, builder: Any, kind: Any, data: Any, at: Any, width: Any) -> Any:
    """Return the address of ``data[at]`` as a pointer to ``width``."""
    if isinstance(kind, types.Array):
        data = context.make_array(kind)(context, builder, data).data
    return builder.bitcast(builder.gep(data, [at]), width.as_pointer())


@intrinsic
def pointer(_typing: Any, array: Any) -> Any:
    """Return a pointer to an array's first element; the caller keeps the array alive."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), generate


def _pointer_to(kind: Any) -> Any:
    def typed(_typing: Any, address: Any) -> Any:
        """Return a pointer to what lies at an address; the caller keeps it alive."""

        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], ir.IntType(kind.bitwidth).as_pointer())

        return types.CPointer(kind)(address), generate

    return intrinsic(typed)


bytes_at, int32s_at, int64s_at = map(_pointer_to, (types.uint8, types.int32, types.int64))


@intrinsic
def load_word(_typing: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes at ``at`` as a uint64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], args[0], args[1], _WORD)
        return builder.load(place, align=1)

    return types.uint64(data, types.intp), generate


@intrinsic
def store_word(_typing: Any, data: Any, at: Any, word: Any) -> Any:
    """Write a uint64 as the eight bytes at ``at``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], args[0], args[1], _WORD)
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64), generate


@intrinsic
def swapped(_typing: Any, word: Any) -> Any:
    """Return a uint64 with its bytes in the other order."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


@intrinsic
def trailing_zeros(_typing: Any, word: Any) -> Any:
    """Return how many low bits of a uint64, which is not zero, are zeros."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.intp(types.uint64), generate


def _specials(builder: Any, read: Any) -> Any:
    """Return a bit for each of sixteen bytes that may not stand in a JSON string as it is."""

    def all_of(byte: int) -> Any:
        return ir.Constant(_VECTOR, [byte] * _BLOCK)

    special = builder.icmp_unsigned("<", read, all_of(0x20))
    special = builder.or_(special, builder.icmp_unsigned("==", read, all_of(0x22)))
    special = builder.or_(special, builder.icmp_unsigned("==", read, all_of(0x5C)))
    return builder.zext(builder.bitcast(special, ir.IntType(_BLOCK)), _WORD)


@intrinsic
def special_bits(_typing: Any, data: Any, at: Any) -> Any:
    """Return a bit for each of the sixteen bytes at ``at`` that ends or breaks a JSON string.

    Those are the quote, the backslash and everything below the space. The first byte's bit is the
    lowest of the uint64.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        return _specials(builder, builder.load(place, align=1))

    return types.uint64(data, types.intp), generate


@intrinsic
def copy_block(_typing: Any, out: Any, at: Any, data: Any, begin: Any) -> Any:
    """Copy sixteen bytes; return the ``special_bits`` of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _address(context, builder, signature.args[2], args[2], args[3], _VECTOR)
        target = _address(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        read = builder.load(source, align=1)
        builder.store(read, target, align=1)
        return _specials(builder, read)

    return types.uint64(out, types.intp, data, types.intp), generate
