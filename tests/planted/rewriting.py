"""Planting by rewriting: a class gets a copy of an inherited method in which some words are others."""

from __future__ import annotations
import __future__

import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple, TypeVar
from unittest import mock

T = TypeVar("T", bound=type)


class Misplaced(BaseException):
    """The words to rewrite are not there. No `Exception`: a simulator that catches it must not take it for the bug."""


class Rewrite(NamedTuple):
    """What `rewrite` was asked for."""

    method: str
    old: str
    new: str
    part: str | type


def rewrite(method: str, old: str, new: str, part: str | type = "", after: str = "__init__") -> Callable[[T], T]:
    """A class decorator: `method`, as inherited, with `new` for `old`, which must be there exactly once,
    however its words are spaced.

    part: the method is not the class's own, but that of a part of it: of this class (while the protocol is made, all
    modules of `multicast` have the class with the bug in its place); or of an attribute's value, e.g. "paxos.rejoin"
    (or of all values, if it is a dict). after: the method of the class that makes that value, or more of them.
    """

    def plant(kind: T) -> T:
        vars(kind).get("rewrites") or setattr(kind, "rewrites", [])
        kind.rewrites.append(Rewrite(method, old, new, part))  # type: ignore[attr-defined]
        if isinstance(part, type):
            _plant_in_part(kind, part, method, old, new)
            return kind
        if not part:
            try:
                setattr(kind, method, rewritten(kind, method, old, new))
            except Misplaced as error:  # its own test fails, and no other
                kind.misplaced = error  # type: ignore[attr-defined]
            return kind
        original = getattr(kind, after)
        kinds: dict[type, type] = {}

        @wraps(original)
        def planting(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            value = self
            for name in part.split("."):
                value = getattr(value, name)
            for one in value.values() if isinstance(value, dict) else (value,):
                if isinstance(one, tuple(kinds.values())):
                    continue
                if type(one) not in kinds:
                    changed = rewritten(type(one), method, old, new)
                    kinds[type(one)] = type(kind.__name__, (type(one),), {method: changed, "__slots__": ()})
                one.__class__ = kinds[type(one)]
                for name, handler in self.handlers.items():
                    if handler.call.__self__ is one:
                        self.handlers[name] = handler._replace(call=getattr(one, handler.call.__name__))
                deadlines = getattr(one, "_deadlines", None)
                if deadlines is not None:
                    timers = deadlines._timers.items()
                    deadlines._timers = {n: getattr(one, t.__name__) if t.__self__ is one else t for n, t in timers}
            return result

        setattr(kind, after, planting)
        return kind

    return plant


def _plant_in_part(kind: type, part: type, method: str, old: str, new: str) -> None:
    original = getattr(kind, "__init__")  # noqa: B009
    kinds: dict[type, type] = {}

    def with_bug(known: type) -> type:
        """known: `part`, or what an earlier rewriting has made of it."""
        if known not in kinds:
            kinds[known] = type(kind.__name__, (known,), {method: rewritten(known, method, old, new)})
        return kinds[known]

    @wraps(original)
    def planting(self: Any, *args: Any) -> None:
        with ExitStack() as stack:
            for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "multicast"]:
                known = vars(module).get(part.__name__)
                if isinstance(known, type) and issubclass(known, part):
                    stack.enter_context(mock.patch.object(module, part.__name__, with_bug(known)))
            original(self, *args)

    try:
        rewritten(part, method, old, new)
    except Misplaced as error:
        kind.misplaced = error  # type: ignore[attr-defined]
    setattr(kind, "__init__", planting)  # noqa: B010


def rewritten(kind: type, method: str, old: str, new: str) -> Any:
    """A copy of the method in which `new` stands for `old`."""
    owner = next((c for c in kind.__mro__ if method in vars(c)), None)
    if owner is None:
        raise Misplaced(f"{kind.__name__} has no {method}")
    found: Any = vars(owner)[method]
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    source = getattr(function, "source", None) or textwrap.dedent(inspect.getsource(function))
    found_at = list(re.finditer(r"\s+".join(map(re.escape, old.split())), source))
    if len(found_at) != 1:
        raise Misplaced(f"{owner.__name__}.{method} has {len(found_at)} times {old!r}")
    source = source[: found_at[0].start()] + new + source[found_at[0].end() :]
    file = f"<{kind.__name__}.{method}>"
    text = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {method}\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: dict[str, Any] = {}
    code = compile(text, file, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    exec(code, function.__globals__, made)
    origin = getattr(function, "owner", owner)
    result = made["make"](origin)
    plain: Any = result.fget if isinstance(result, property) else getattr(result, "__func__", result)
    plain.source, plain.owner = source, origin
    return result
