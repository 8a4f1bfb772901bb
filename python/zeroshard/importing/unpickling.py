"""Builds the values of a pickle without running the code that it names, in time proportional to the pickle's length.

A pickle names callables and makes its reader call them. In this reader each allowed name stands for an object that the
reader has for it. Every other name becomes a ``Placeholder`` class, which only records its arguments and state. A few
bytes of a pickle can also request much work, such as a list of lists of the same list, or a key that takes hours to
hash. So the reader counts every operation that looks at a value more than once.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any

from ..messages import a_type

_STEPS_PER_BYTE, _STEPS = 16, 100_000  # limit of steps to build the values: per byte of the pickle, plus this many
_MOST_NAMES = 10_000  # limited, because the reader makes a class for each name
_MOST_IN_A_KEY = 1_000  # values in a key of a dict or set
_KEY_BITS = 64  # most bits of a number in a key


class Placeholder:
    """An object of a class that the reader does not load: its name, arguments and state."""

    class_name = ""

    def __new__(cls, *arguments: Any, **named: Any) -> Placeholder:
        self = object.__new__(cls)
        object.__setattr__(self, "_recorded", (arguments, named))
        object.__setattr__(self, "_fields", {})
        object.__setattr__(self, "_items", [])
        return self

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self._recorded[0]

    @property
    def fields(self) -> dict[str, Any]:
        """Returns the object's attributes: those in its state if that is a dict or a tuple with dicts, else none."""
        return self._fields

    @property
    def items(self) -> list[Any]:
        """Returns the items that the pickle appended to the object."""
        return self._items

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    def append(self, item: Any) -> None:
        self._items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        self._items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items.append((key, value))

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields[name] = value

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self._fields.update({key: value for key, value in part.items() if isinstance(key, str)})

    def __repr__(self) -> str:
        return f"<{self.class_name}>"


class Dict(dict):
    """An OrderedDict of a pickle, but without its attributes."""

    def __setstate__(self, state: Any) -> None:
        pass


class Fixed:
    """The object for a name in a pickle. The pickle cannot change it."""

    __slots__ = ("value", "function")

    def __init__(self, value: Any = None, function: Any = None) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "function", function)

    def __call__(self, *arguments: Any) -> Any:
        if self.function is None:
            raise ValueError("a pickle calls what is no function")
        return self.function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("a pickle sets attributes of a name")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a pickle sets the state of a name")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (tuple, list, dict, set, frozenset)) else 0


class Unpickler(pickle._Unpickler):  # in Python, because pickle's class in C would not use these methods
    """Reads the pickle ``data``. ``names`` has the allowed names. ``storage`` returns the object of a persistent id."""

    def __init__(self, data: bytes, names: dict[str, Any], storage: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._data, self._names, self._storage = data, names, storage
        self._steps = self._most = _STEPS_PER_BYTE * len(data) + _STEPS

    def load(self) -> Any:
        self._check_numbers()
        return super().load()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._names:
            if len(self._names) >= _MOST_NAMES:
                raise ValueError(f"it names more than {_MOST_NAMES} classes and functions")
            self._names[full] = type("Placeholder", (Placeholder,), {"class_name": full})
        return self._names[full]

    def persistent_load(self, pid: Any) -> Any:
        return self._storage(pid)

    def get_extension(self, code: int) -> Any:
        raise ValueError(f"it names a class by the number {code}, which says nothing outside of its writer")

    def _check_numbers(self) -> None:
        """Raises ``ValueError`` for lengths and memo numbers for which the unpickler would allocate too much memory.

        genops() itself checks the lengths.
        """
        for opcode, argument, _ in pickletools.genops(self._data):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= argument < len(self._data):
                raise ValueError(f"it remembers a value under the number {argument}, and has {len(self._data)} bytes")

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise ValueError(f"it has {len(self._data)} bytes, and takes more than {self._most} steps to read")

    def _make(self, function: Any, arguments: Any, named: Any = None) -> Any:
        if not isinstance(function, Fixed) and not (isinstance(function, type) and issubclass(function, Placeholder)):
            raise ValueError(f"it calls {a_type(function)}")
        if not isinstance(arguments, (tuple, list)) or not isinstance(named or {}, dict):
            raise ValueError(f"it calls something with {a_type(arguments)} for arguments")
        self._spend(1 + len(arguments) + sum(map(_length, arguments)) + _length(named))
        for argument in arguments:
            if isinstance(function, Fixed) and isinstance(argument, (list, tuple)):
                for item in argument:  # the items can be pairs of a dict
                    if isinstance(item, (list, tuple)) and item:
                        self._check_key(item[0])
        return function(*arguments, **(named or {}))

    def _check_key(self, key: Any) -> None:
        """Raises ``ValueError`` for large keys.

        Hashing or comparing such a key takes long, because a part is visited as often as it occurs.
        """
        waiting, seen = [key], 0
        while waiting:
            part = waiting.pop()
            seen += 1
            if isinstance(part, (tuple, frozenset)):
                if seen + len(waiting) + len(part) > _MOST_IN_A_KEY:
                    raise ValueError(f"a key of a dict or set has more than {_MOST_IN_A_KEY} values")
                waiting.extend(part)
            elif isinstance(part, int) and part.bit_length() > _KEY_BITS:
                raise ValueError(f"a key of a dict or set is a number of {part.bit_length()} bits")
        self._spend(seen)

    def _put(self, target: Any, items: list[Any]) -> None:
        """Puts ``items`` into a dict. They are a key, its value, the next key, ..."""
        if not isinstance(target, (dict, Placeholder)) or len(items) % 2:
            raise ValueError(f"it puts values into {a_type(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(target, dict):
                self._check_key(key)
            target[key] = value

    def _add(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, (list, Placeholder)):
            raise ValueError(f"it appends to {a_type(target)}")
        target.extend(items)

    # -- opcodes ---------------------------------------------------------------------------------------------------

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.append(self._make(function, arguments))

    def load_newobj_ex(self) -> None:
        named, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.append(self._make(function, arguments, named))

    def _instantiate(self, klass: Any, args: Any) -> None:  # opcodes INST and OBJ
        self.append(self._make(klass, args))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, (Placeholder, Dict, Fixed)):
            raise ValueError(f"it sets the state of {a_type(target)}")
        parts = state if isinstance(state, tuple) else (state,)
        self._spend(1 + len(parts))
        self._spend(sum(map(_length, parts)))
        target.__setstate__(state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._put(self.stack[-1], items)

    def load_dict(self) -> None:
        items, made = self.pop_mark(), {}
        self._put(made, items)
        self.append(made)

    def load_append(self) -> None:
        item = self.stack.pop()
        self._add(self.stack[-1], [item])

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._add(self.stack[-1], items)

    def load_additems(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        if not isinstance(target, set):
            raise ValueError(f"it adds to {a_type(target)}")
        for item in items:
            self._check_key(item)
            target.add(item)

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        for item in items:
            self._check_key(item)
        self.append(frozenset(items))

    dispatch = pickle._Unpickler.dispatch | {
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_reduce,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
    }
