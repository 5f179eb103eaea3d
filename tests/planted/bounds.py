"""Bugs planted in operations that bound numbers, and compare ranges."""

from __future__ import annotations

from kvstore.core.execution import Execution
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

CHECK = "serial execution"
SMALL = Settings(protocol="white_box", size="small", bounds=True)
ONE_SHARD = Settings(protocol="white_box", size="small", shards=1, bounds=True)


_ADDED = "(self, NUMBERS[0](operation.key, 0) if type(operation) is NUMBERS[2] else operation)))"


@rewrite("run", "(self, operation)))", _ADDED)
class GreaterLeftOut(Execution):
    """The greater of two numbers is the one that was there."""


@rewrite("run", "(index, _RUN[", "(index, (_RUN | {NoneNewer: lambda *_: _PUT_RESULT})[")
class NewerPasses(Execution):
    """A key that was written later is no reason to fail."""


PLANTED_IN_STORE = (
    Planted("GreaterLeftOut", CHECK, core=GreaterLeftOut, settings=SMALL),
    Planted("NewerPasses", CHECK, core=NewerPasses, settings=ONE_SHARD),
)
