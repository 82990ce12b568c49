# SPDX-License-Identifier: Apache-2.0
"""Reads a pickle without running anything that it names.

A pickle is a program for a stack machine, which may name any function of Python and have it called. This is that
machine with the calling left out: what `build` knows (`pickled_values`) is made by our own code, everything else
becomes an `Inert` that remembers what would have been made of what. Python's own machine with another find_class would
not do: it also sets attributes of whatever lies on the stack, and allocates what a pickle asks for.
"""

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from megatron_core.checkpoint.megatron.file_slice import FileSlice
from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.checkpoint.megatron.pickled_values import build, give_state, is_expected
from megatron_core.errors import CheckpointError

Persistent = Callable[[object], object]
"""Gives what a persistent id stands for: torch writes one for each tensor's storage. Raises ValueError."""

_MAX_PICKLE_BYTES = 2**28
_MAX_COPIED = 2**26
_VALUES = frozenset(
    {
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    }
)
"""Opcodes that push their argument."""
_EMPTY: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Protocols 0 to 2 name modules as they were called there."""


def unpickle(file: FileSlice, persistent: Persistent | None = None) -> tuple[Any, frozenset[str]]:
    """What the pickle at the file's position holds, and the names in it that no checkpoint needs, all left inert.

    The file stands behind the pickle afterwards. Raises CheckpointError where it is none, or asks for what no
    checkpoint holds.
    """
    machine = _Machine(persistent)
    start = file.tell()
    try:
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], file)):
            if file.tell() - start > _MAX_PICKLE_BYTES:
                raise ValueError(f"more than {_MAX_PICKLE_BYTES} bytes")
            if opcode.name == "STOP":
                return machine.stack.pop(), frozenset(machine.inert)
            machine.step(opcode.name, argument)
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError, MemoryError) as error:
        reason = ascii(str(error))[1:-1][:200]
        raise CheckpointError(f"{file.path}: a damaged or hostile pickle at byte {file.tell()}: {reason}") from None
    raise CheckpointError(f"{file.path}: a pickle without an end")


@dataclass
class _Machine:
    """Stack, marks and memo. Each step raises one of the errors above where the pickle is wrong."""

    persistent: Persistent | None
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    """Stacks put aside by marks."""
    memo: dict[int, Any] = field(default_factory=dict)
    inert: set[str] = field(default_factory=set)
    copied: int = 0

    def step(self, name: str, argument: Any) -> None:
        """Perform one opcode."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name not in ("PROTO", "FRAME"):
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:
        """Opcodes with marks, and those that make objects."""
        match name:
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "POP":
                self.stack.pop()
            case "POP_MARK":
                self._above_mark()
            case "DUP":
                self.stack.append(self.stack[-1])
            case "LIST" | "TUPLE" | "DICT" | "FROZENSET":
                self._collect(name)
            case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS" | "ADDITEMS":
                self._extend(name)
            case "GLOBAL":
                self._name(*argument.split(" ", 1))
            case "STACK_GLOBAL":
                attribute, module = self.stack.pop(), self.stack.pop()
                self._name(module, attribute)
            case "REDUCE" | "NEWOBJ":
                arguments, callee = self.stack.pop(), self.stack.pop()
                self._make(callee, arguments)
            case "NEWOBJ_EX":
                keywords, arguments, callee = self.stack.pop(), self.stack.pop(), self.stack.pop()
                self._make(callee, (*arguments, keywords) if keywords else arguments)
            case "BUILD":
                state = self.stack.pop()
                give_state(self.stack[-1], state)
            case "BINPERSID" if self.persistent is not None:
                self.stack.append(self.persistent(self.stack.pop()))
            case _:
                raise ValueError(f"{name} has no place in a checkpoint")

    def _above_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def _collect(self, name: str) -> None:
        items = self._above_mark()
        if name == "DICT":
            self.stack.append(dict(_pairs(items)))
        elif name == "FROZENSET":
            self.stack.append(frozenset(map(_key, items)))
        else:
            self.stack.append(items if name == "LIST" else tuple(items))

    def _extend(self, name: str) -> None:
        count = {"APPEND": 1, "SETITEM": 2}.get(name)
        if count is None:
            items = self._above_mark()
        else:
            items = self.stack[-count:]
            del self.stack[-count:]
        target = self.stack[-1]
        expected = {"A": list, "S": dict}[name[0]] if name != "ADDITEMS" else set
        if type(target) is not expected:
            raise ValueError(f"{name} on a {type(target).__name__}")
        if name.startswith("SET"):
            target.update(_pairs(items))
        elif name == "ADDITEMS":
            target.update(map(_key, items))
        else:
            target.extend(items)

    def _name(self, module: object, attribute: object) -> None:
        """Push what a name stands for: a value that `build` knows, or the name alone."""
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError("a name that is no text")
        self._push(build(Inert(f"{_PYTHON_2.get(module, module)}.{attribute}"), None))

    def _make(self, callee: object, arguments: object) -> None:
        """Push what a call would have given, by our own code or inert; calls of what that gives go by the same name."""
        if not isinstance(arguments, tuple):
            raise ValueError("a call without a tuple of arguments")
        if not isinstance(callee, Inert):
            raise ValueError(f"a call of a {type(callee).__name__}")
        made = build(callee, arguments)
        if isinstance(made, (bytes, list, dict, set, frozenset, tuple)):
            self.copied += len(made)  # what the memo gives again and again must not be copied again and again
            if self.copied > _MAX_COPIED:
                raise ValueError(f"copies of more than {_MAX_COPIED} elements")
        self._push(made)

    def _push(self, value: object) -> None:
        if isinstance(value, Inert) and not is_expected(value.name):
            self.inert.add(value.name)
        self.stack.append(value)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    return ((_key(key), value) for key, value in zip(items[::2], items[1::2]))


def _key(key: object) -> Any:
    """A key as a checkpoint has them; hashing a tuple of tuples of tuples has no bound on the C stack."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(part is None or isinstance(part, (str, bytes, int, float, Inert)) for part in parts):
        raise ValueError(f"a {type(key).__name__} as a key")
    return key
