"""Count what a call executes, which no load on the machine changes: bytecode instructions, and what C code walks.

An instruction costs one, however long a list is that `in`, `+`, `==`, `sorted` or `split` walk in C. So the lengths of the
variables that such an instruction takes count too. Not counted: what C code does beyond the length of what it is given
(a regular expression that tries again), and values that are no variables of the function.
"""

from __future__ import annotations

import dis
import gc
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

# Names of functions and methods that take no longer for a longer value, or as long as their other arguments.
CONSTANT: Final = frozenset(
    {"append", "add", "get", "items", "keys", "values", "pop", "setdefault", "update", "extend", "clear"}
    | {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "group"}
    | {"len", "isinstance", "iter", "next", "type", "id", "bool", "callable", "getattr", "memoryview", "cast"}
)
WALKS: Final = frozenset(
    {"CONTAINS_OP", "BINARY_OP", "COMPARE_OP", "CALL"}
    | {"LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "FORMAT_VALUE"}
)
VARIABLES: Final = frozenset({"LOAD_FAST", "LOAD_DEREF"})
BETWEEN: Final = frozenset(
    {"LOAD_CONST", "LOAD_GLOBAL", "PRECALL"} | {"KW_NAMES", "PUSH_NULL", "BUILD_TUPLE", "BUILD_LIST"}
)
LETTERS: Final = 64  # that C code compares or copies in the time of one instruction, or less


class Walk(NamedTuple):
    """An instruction that walks values: which variables it takes, and whether it looks into a hash table."""

    variables: tuple[str, ...]
    hashes: bool


def operations(work: Callable[[], object]) -> int:
    """Return the number of operations of a call, without the garbage collector, which runs at any time."""
    count = walked = 0  # walked: by the last instruction, unless it calls a function that is counted itself

    def enter(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal walked
        walked = 0
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        walk_at = _walks(frame.f_code).get

        def step(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
            nonlocal count, walked
            if walked:
                count += walked
                walked = 0
            if event == "opcode":
                count += 1
                if walk := walk_at(frame.f_lasti):
                    walked = _length(walk, frame.f_locals)
            return step

        return step

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count


def _length(walk: Walk, variables: Mapping[str, object]) -> int:
    values = [variables.get(name) for name in walk.variables]
    letters = sum(len(value) for value in values if isinstance(value, (str, bytes)))
    kinds = (list, tuple) if walk.hashes else (list, tuple, dict, set, frozenset)
    return letters // LETTERS + sum(len(value) for value in values if isinstance(value, kinds))


@cache
def _walks(code: CodeType) -> Mapping[int, Walk]:
    """Return the instructions of a function that walk variables, by their offset."""
    instructions = [it for it in dis.get_instructions(code) if it.opname not in {"CACHE", "EXTENDED_ARG"}]
    found = {}
    for at, instruction in enumerate(instructions):
        if instruction.opname in WALKS and (walk := _walk(instructions[:at], instruction.opname)):
            found[instruction.offset] = walk
    return found


def _walk(before: list[dis.Instruction], name: str) -> Walk | None:
    variables: list[str] = []
    for instruction in reversed(before):
        if instruction.opname in VARIABLES:
            variables.append(instruction.argval)
        elif instruction.opname in {"LOAD_GLOBAL", "LOAD_METHOD"} and instruction.argval in CONSTANT:
            return None
        elif instruction.opname not in BETWEEN | {"LOAD_METHOD"}:
            break
    return Walk(tuple(variables), hashes=name == "CONTAINS_OP") if variables else None
