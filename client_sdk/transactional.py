"""Functions that are transactions, as in FoundationDB's clients.

    @transactional
    def transfer(t: Transaction, source: str, target: str, amount: int) -> None:
        balance = int(t.get(source) or b"0")
        if balance < amount:
            raise ValueError("not enough")
        t.put(source, str(balance - amount))
        t.put(target, str(int(t.get(target) or b"0") + amount))

    transfer(store, "ann", "bob", 5)

Called with a client, or with one of its views for values with a codec, the function runs in a transaction of its own,
and again, reading anew, as long as what it has read was changed before it committed (`transact` of the clients). Called
with a transaction, it is part of that one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from client_sdk.async_client import AsyncClient, AsyncTyped, AsyncTypedTransaction
from client_sdk.blocking import Transaction
from client_sdk.client import Client, Typed, TypedTransaction
from client_sdk.interactive import InteractiveTransaction

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


@overload
def transactional(
    function: Callable[Concatenate[InteractiveTransaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncClient | InteractiveTransaction, P], Coroutine[Any, Any, T]]:
    """A coroutine function."""


@overload
def transactional(
    function: Callable[Concatenate[AsyncTypedTransaction[V], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncTyped[V] | AsyncTypedTransaction[V], P], Coroutine[Any, Any, T]]:
    """A coroutine function of values with a codec."""


@overload
def transactional(
    function: Callable[Concatenate[TypedTransaction[V], P], T],
) -> Callable[Concatenate[Typed[V] | TypedTransaction[V], P], T]:
    """Any other one of values with a codec."""


@overload
def transactional(
    function: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Client | Transaction, P], T]:
    """Any other one."""


def transactional(function: Callable[..., Any]) -> Callable[..., Any]:
    """See the module. The function's first parameter is the transaction, positional. It may be a coroutine function,
    then for `AsyncClient`; it must be fit to run several times."""

    @wraps(function)
    def run(where: Any, /, *args: Any, **named: Any) -> Any:
        if isinstance(where, Client | AsyncClient | Typed | AsyncTyped):
            return where.transact(lambda transaction: function(transaction, *args, **named))
        if isinstance(where, Transaction | InteractiveTransaction | TypedTransaction | AsyncTypedTransaction):
            return function(where, *args, **named)
        kind = "an AsyncClient" if inspect.iscoroutinefunction(function) else "a Client"
        raise TypeError(f"{function.__name__}: {kind} or its transaction comes first, not {type(where).__name__}")

    return run
