"""Bugs planted in what a store keeps for a backup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvstore.api.model import CUT, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.simulated.settings import Settings
from kvstore.storage.cut import Cut
from kvstore.storage.history import LOOKED_MAX, Past
from kvstore.storage.layers import Layer
from kvstore.storage.store import Store
from multicast.types import GroupId, Timestamp
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

SMALL = Settings(protocol="white_box", size="small", backups=True)
TWO_SHARDS = Settings(protocol="white_box", size="small", shards=2, backups=True)
CALM = Settings(protocol="white_box", profile="calm", size="small", shards=2, clients=6, backups=True)
MOVING = msgspec.structs.replace(CALM, moves=True)


class OneDeliveryLate(Store):
    """A cut holds one delivery more than it should."""

    _waiting: tuple[Timestamp, ...] = ()

    def cut(self, version: Timestamp) -> None:
        self._waiting = (version,)

    def reached(self, position: int, timestamp: Timestamp) -> None:
        due, self._waiting = self._waiting if self._waiting and self._waiting[0] < timestamp else (), self._waiting
        super().reached(position, timestamp)
        for version in due:
            super().cut(version)
            self._waiting = ()


class InsideItsBundle(Store):
    """A cut is made where it stands in its bundle, not behind that."""

    def cut(self, version: Timestamp) -> None:
        super().cut(version)
        super().reached(0, Timestamp(version.time, version.tiebreak >> 16))


@rewrite("reached", "for layer in (self._active, self._frozen)", "for layer in (self._active,)")
class WithoutTheFrozenLayer(Store):
    """What is about to be committed is not in a cut."""


@rewrite("reached", "(self._active, self._frozen)", "(self._frozen, self._active)")
class FrozenOverActive(Store):
    """What was overwritten since is in a cut."""


@rewrite("reached", "if self._cuts_due:", "if self._cuts_due and not self._active.data:")
class OnlyWhereNothingIsBuffered(Store):
    """A shard that is busy keeps nothing."""


@rewrite("reached", 'self.note(PLACES) or b""', 'b""')
class WithoutPlaces(Store):
    """A cut does not tell which slots the shard has given and taken."""


class AtOneShard(ShardMap):
    """A cut is ordered at one shard, as if it concerned no other."""

    def shards_of(self, transaction: Transaction) -> tuple[GroupId, ...]:
        return self.shards[:1] if transaction == CUT else super().shards_of(transaction)


class WhatIsLater(Cut):
    """What is in the write buffer by the time that it is read is in a cut, whatever was delivered since."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._over = arguments[-1][0].data


class AtTheCut(Cut):
    """Who asks for an earlier version gets what stood at the cut."""

    def rows_at(self, version: Timestamp, after: bytes, looked_max: int = LOOKED_MAX) -> Iterator[tuple[bytes, bytes]]:
        return self.rows(after)


@rewrite("rows_at", "version < oldest", "False")
class BelowTheFloor(Cut):
    """What was let go of before the cut is read as if it were there."""


@rewrite("rows", "first = (last", "break; first = (last")
class FirstLookAlone(Past):
    """Of rows at an earlier version that take more than one look the rest is left out."""


@rewrite("copy", "dict(self.past)", "{}")
class WithoutOverwritten(Layer):
    """What was written and overwritten in the write buffer is not known of a cut."""


PLANTED_IN_STORE = (
    Planted("at_one_shard", "cuts", core=AtOneShard, settings=TWO_SHARDS),
    Planted("without_places", "cuts", store=WithoutPlaces, settings=MOVING),
    Planted("what_is_later", "cuts", core=WhatIsLater, settings=SMALL),
    Planted("at_the_cut", "cuts", core=AtTheCut, settings=SMALL),
    Planted("below_the_floor", "cuts", core=BelowTheFloor, settings=SMALL),
    Planted("first_look_alone", "cuts", core=FirstLookAlone, settings=SMALL),
    Planted("without_overwritten", "cuts", core=WithoutOverwritten, settings=SMALL),
    Planted("one_delivery_late", "cuts", store=OneDeliveryLate, settings=SMALL),
    Planted("inside_its_bundle", "cuts", store=InsideItsBundle, settings=CALM),
    Planted("without_the_frozen_layer", "cuts", store=WithoutTheFrozenLayer, settings=SMALL),
    Planted("frozen_over_active", "cuts", store=FrozenOverActive, settings=SMALL),
    Planted("only_where_nothing_is_buffered", "cuts", store=OnlyWhereNothingIsBuffered, settings=TWO_SHARDS),
)
