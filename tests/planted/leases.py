"""Bugs planted in leases: when they are revoked, and what goes with them."""

from __future__ import annotations

from kvstore.core.execution import Execution
from kvstore.core.leases import Leases
from kvstore.core.replica import Replica
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

SMALL = Settings(protocol="white_box", size="small", leases=True)
MOVING = Settings(protocol="white_box", size="small", leases=True, moves=True, shards=2, profile="calm")
TWO = Settings(protocol="white_box", size="small", leases=True, shards=2, profile="calm")


@rewrite(
    "_revoke",
    "transaction = leases.revoke(row, lease)",
    "transaction = leases.revoke(row, lease); c, = transaction.compare; c.op, c.operand = '!=', (0, 0)",
)
class RevokedAnyhow(Leases):
    """A renewal that was ordered first does not win."""


@rewrite("_find", "row.version, now)", "row.version, now - 1_000_000)")
class TimeOfTheLastLeader(Leases):
    """A new leader takes every lease for one that was not renewed for long."""


@rewrite("_measure", "now + 1000 *", "now + 900 *")
class TenthTooEarly(Leases):
    """A lease is revoked when nine tenths of its time are over."""


@rewrite("on_tick", "self._versions.get(lease) == version:", "lease in self._versions:")
@rewrite("_revoke", "if row is None or row.version != version:", "if row is None:")
class TimeOfTheFirstVersion(Leases):
    """A lease is revoked a time to live after any of its renewals."""


@rewrite("_step", "self.leases.moved()", "pass")
class MovedInUnmeasured(Replica):
    """A lease that came with a move never expires."""


@rewrite("_step", "if given.slots:", "if self.moves.map is not before:")
class MovedInUnmeasuredWhereKnown(Replica):
    """A lease that came with a move never expires if its new shard had been told of the move before."""


@rewrite("_find", "leases.ROWS, False, set()", "leases.ROWS, False, set(); self._versions, self._due = {}, []")
class MeasuredAnewAtEachMove(Leases):
    """As long as slots move no lease expires."""


@rewrite("_find", "if more else None", "if False else None")
class FirstOnesMeasured(Leases):
    """Of many leases a new leader measures the first ones."""


@rewrite("wrote", "self._versions.pop(lease, None)", "pass")
class GoneAndMeasured(Leases):
    """A lease that is gone is looked at for ever."""


@rewrite("_revoke", "max(self._clock(now), self._store.complete_to.time)", "self._clock(now)")
class RevokedTooLate(Leases):
    """Where a clock was set back, revocations come too late for their ids."""


@rewrite("_attached", "return found + [", "return found[::2] + [")
class HalfOfTheKeys(Execution):
    """Every other key that is attached stays."""


@rewrite("_attach", "if operation.slot not in lease.slots:", "if not lease.slots:")
class OneSlotNoted(Execution):
    """The home of a lease notes where its first key is, and no other."""


@rewrite("run", "leases.pop(operation.key, None)", "pass")
class AttachedByAnotherPut(Execution):
    """A put without a lease, behind one with a lease in its transaction, leaves the key attached."""


@rewrite("_find", "rows, more = self._store", "self._seen = set(); rows, more = self._store")
class LastPortionMeasured(Leases):
    """A new leader that finds the leases in portions measures those of the last one."""


@rewrite("wrote", "if self._at is not None: self._seen.add(lease)", "pass")
class GrantedWhileFinding(Leases):
    """A lease that is granted while a new leader looks for the others never expires if that has passed its place."""


PLANTED_IN_STORE = (
    Planted("revoked_anyhow", "leases", core=RevokedAnyhow, settings=SMALL),
    Planted("time_of_the_last_leader", "leases", core=TimeOfTheLastLeader, settings=SMALL),
    Planted("time_of_the_first_version", "leases", core=TimeOfTheFirstVersion, settings=SMALL),
    Planted("tenth_too_early", "books", core=TenthTooEarly, settings=SMALL),
    Planted("moved_in_unmeasured", "books", MovedInUnmeasured, settings=MOVING),
    Planted("moved_in_unmeasured_where_known", "", MovedInUnmeasuredWhereKnown, settings=MOVING),
    Planted("measured_anew_at_each_move", "", core=MeasuredAnewAtEachMove, settings=MOVING),
    Planted("first_ones_measured", "", core=FirstOnesMeasured, settings=SMALL),
    Planted("gone_and_measured", "", core=GoneAndMeasured, settings=SMALL),
    Planted("revoked_too_late", "", core=RevokedTooLate, settings=SMALL),
    Planted("half_of_the_keys", "serial execution", core=HalfOfTheKeys, settings=TWO),
    Planted("one_slot_noted", "serial execution", core=OneSlotNoted, settings=TWO),
    Planted("last_portion_measured", "books", core=LastPortionMeasured, settings=SMALL),
    Planted("granted_while_finding", "", core=GrantedWhileFinding, settings=SMALL),
    Planted("attached_by_another_put", "", core=AttachedByAnotherPut, settings=TWO),
)
