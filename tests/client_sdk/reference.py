"""Writes `client_sdk/API.md` from the docstrings: python -m tests.client_sdk.reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import client_sdk
from client_sdk import codecs, testing
from tests.house import ROOT

PAGE = ROOT / "client_sdk" / "API.md"
CLIENTS = (
    "AsyncClient", "AsyncTyped", "InteractiveTransaction", "AsyncTypedTransaction", "Session", "Lock", "Election",
)  # fmt: skip
OPERATIONS = (
    "Compare", "Get", "Put", "Delete", "Add", "Min", "Max", "Append", "Range", "DeleteRange", "NoneNewer", "Txn",
)  # fmt: skip
TOLD = (
    "KeyValue", "Entry", "Page", "Result", "OperationResult", "TxnResult", "Outcome", "Event", "Change", "Update",
    "Lease", "Timestamp", "Done", "Changed",
)  # fmt: skip
BLOCKING = ("Client", "Typed", "Transaction", "TypedTransaction")
TYPES = {"Consistency", "MessageId", "Operation", "Operator", "Target", "ZERO"}
"""Names of the package that need no entry of their own."""

HEAD = """# What the SDK offers

Written from the docstrings by `tests/client_sdk/reference.py`; a test says when it is stale. The
[tutorial](TUTORIAL.md) says what it is for. `Client` has the methods of `AsyncClient` without `await`, with plain
iterators and blocks; the same holds of `Typed`, `Transaction`, `TypedTransaction`, sessions and elections.

"""


def page() -> str:
    """The text."""
    return HEAD + "\n".join(part for part in sections()).rstrip() + "\n"


def sections() -> Iterator[str]:
    yield "## The package\n"
    yield f"```text\n{inspect.getdoc(client_sdk)}\n```\n"
    yield "## Clients\n"
    for name in CLIENTS:
        yield from of_class(name, getattr(client_sdk, name))
    yield "## Functions\n"
    for name in ("transactional", "new_id"):
        yield from of_function(name, getattr(client_sdk, name), "###")
    yield "## Parts of a transaction\n"
    for name in OPERATIONS:
        yield from of_class(name, getattr(client_sdk, name))
    yield "## What is told\n"
    for name in TOLD:
        yield from of_class(name, getattr(client_sdk, name))
    yield "## Codecs\n"
    yield from of_class("codecs.Codec", codecs.Codec)
    for name in ("json", "msgpack"):
        yield from of_function(f"codecs.{name}", getattr(codecs, name), "###")
    yield "`codecs.TEXT` is for `str`, `codecs.RAW` for `bytes`.\n"
    yield "## A store in memory\n"
    yield from of_class("testing.MemoryStore", testing.MemoryStore)
    yield "## Exceptions\n"
    for error in errors():
        yield f"- **{error.__name__}** {words(error)}"


def errors() -> list[type[client_sdk.KvError]]:
    """Those that the package exports."""
    exported = [getattr(client_sdk, name) for name in client_sdk.__all__]
    return [one for one in exported if inspect.isclass(one) and issubclass(one, client_sdk.KvError)]


def words(thing: Any) -> str:
    """Its docstring in one paragraph."""
    return re.sub(r"\s*\n\s*", " ", inspect.getdoc(thing) or "")


def signature(thing: Any) -> str:
    found = inspect.signature(thing)
    others = [one for name, one in found.parameters.items() if name != "self"]
    told = str(found.replace(parameters=others)).replace(str(client_sdk.Operation), "Operation")
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", told))


def of_class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{inspect.getdoc(kind)}\n"
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if name in OPERATIONS or "Client" in name or name.endswith("Store"):
        yield f"```python\n{name}{signature(kind).partition(' -> ')[0]}\n```\n"
    elif fields:
        yield f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n"
    for method, value in vars(kind).items():
        if not method.startswith("_") and inspect.isfunction(value) and method != "plain" and value.__doc__:
            yield from of_function(method, value, "####")


def of_function(name: str, function: Any, level: str) -> Iterator[str]:
    yield f"{level} {name}\n"
    waits = "await " if inspect.iscoroutinefunction(function) else ""
    yield f"```python\n{waits}{name}{signature(function)}\n```\n"
    yield f"{inspect.getdoc(function)}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
