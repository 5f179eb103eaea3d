"""One order from a causal DAG, before every process was heard: the ToTo family of delivery rules.

"New Rules for Early Delivery in an Atomic Multicast System", Johnson and Maugis 1994: ToTo (Dolev, Kramer and Malki
1992), S-ToTo, G-ToTo and GL-ToTo, Sections 3 to 5.

Theory of operation. n processes multicast causally: each message names what its sender had delivered causally before
it. G is what this process knows of the DAG, less what is ordered already. The *candidates* M are the roots of G. The
first message in G of a process is its ballot paper: it votes for the candidates that it follows, a candidate for
itself. So every process casts one vote vector, the same wherever it is read, and u of them are still unseen. A rule
finds out when the set S of *sources*, the candidates that no other beats by more than Φ votes, is *stable*: no
candidate can still become a source, and no unseen message can. Then S is ordered, in the order of the process numbers,
and with the next G a new *activation* begins. However slowly G is revealed, and in whatever order, every process orders
the same sequence; who knows more of G orders more of it.

    rule       S is ordered as soon as ...                                                        needs
    toto       each loser loses for good; a source has > Φ votes; all sources' tails >= n - Φ     n // 2 <= Φ < n
    s_toto     each loser loses for good; a source has > Φ votes                                  n // 2 <= Φ < n
    g_toto     each loser loses for good; a source has > Φ votes; n - Φ processes are seen        1 <= Φ < n
    gl_toto    as g_toto, and a prefix of S, by process number, as soon as that is stable         1 <= Φ < n
    (all)      all n processes are seen

Readings, where the printed text is damaged or wrong:
1. When all processes are seen, S is ordered, not M. With M as printed `toto` is not safe: a process that knows the
   tails may have ordered S early (the test of the planted bug has the DAG). For the other rules both are the same.
2. For g_toto a candidate is a source also when it has *more than* Φ votes. With "at least" two processes differ.
3. "n - Φ processes are seen" is inclusive: an unseen candidate then gets at most Φ votes, and beats nobody.
4. A candidate belongs to its own tail, as it votes for itself.
5. Φ >= n/2 may be rounded down: an unseen candidate gets at most n - Φ - 1 <= Φ votes once a source has Φ + 1.
   (Checked exhaustively for small n by the tests, as is everything on this list.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

RULES = ("toto", "s_toto", "g_toto", "gl_toto")


def phi_range(rule: str, n: int) -> range:
    """The thresholds for which a rule is safe with n processes."""
    return range(n // 2 if rule in ("toto", "s_toto") else min(1, n - 1), n)


class Votes:
    """One activation: who was seen, and who votes for whom. Sets of processes are bit masks.

    votes: candidate -> who votes for it. tails: candidate -> who sent anything that follows it. seen: who voted.
    """

    __slots__ = ("n", "phi", "rule", "seen", "tails", "votes")

    def __init__(self, n: int, rule: str, phi: int):
        if rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}, not {rule!r}")
        if phi not in (allowed := phi_range(rule, n)):
            raise ValueError(
                f"phi is from {allowed.start} to {allowed.stop - 1} for {rule} with {n} processes, not {phi}"
            )
        self.n = n
        self.rule = rule
        self.phi = phi
        self.clear()

    def clear(self) -> None:
        self.seen = 0
        self.votes: dict[int, int] = {}
        self.tails: dict[int, int] = {}

    @property
    def tail(self) -> int:
        """N_tail(G): from how many processes there is a message."""
        return self.seen.bit_count()

    @property
    def unseen(self) -> int:
        """u."""
        return self.n - self.tail

    def beats(self, a: int, b: int) -> int:
        """votes(a, b): how many prefer a to b."""
        return (self.votes[a] & ~self.votes[b]).bit_count()

    def wins(self, a: int, b: int) -> bool:
        """Future(a, b) = {1}: a beats b, and always will."""
        return self.beats(a, b) > self.phi

    def elected(self, a: int) -> bool:
        """More than Φ votes."""
        return self.votes[a].bit_count() > self.phi

    def sources(self) -> list[int]:
        """S, by process number."""
        spare = self.phi - self.unseen
        general = self.rule in ("g_toto", "gl_toto")
        found = []
        for i in sorted(self.votes):
            if (general and self.elected(i)) or all(self.beats(j, i) <= spare for j in self.votes if j != i):
                found.append(i)
        return found

    def complete(self) -> bool:
        """Whether every process was seen."""
        return self.tail == self.n

    def last_resort(self, sources: list[int]) -> list[int]:
        """What is ordered when every process was seen. (Reading 1.)"""
        return sources

    def is_stable(self, sources: list[int]) -> bool:
        """The early delivery rule: internal and external stability of S."""
        n, phi = self.n, self.phi
        if not any(self.votes[s].bit_count() > phi for s in sources):
            return False
        general = self.rule in ("g_toto", "gl_toto")
        if general and self.tail < n - phi:
            return False
        if self.rule == "toto" and any(self.tails[s].bit_count() < n - phi for s in sources):
            return False
        return all(self._loses(i, sources) for i in self.votes if i not in sources)

    def _loses(self, i: int, rivals: Sequence[int] | dict[int, int]) -> bool:
        """A candidate that will not become a source any more."""
        if self.rule in ("g_toto", "gl_toto") and self.votes[i].bit_count() + self.unseen > self.phi:
            return False
        return any(self.wins(j, i) for j in rivals if j != i)

    def decide(self) -> list[int] | None:
        """The candidates to order now, if this activation can end; by process number."""
        if not self.votes:
            return None
        largest = max(v.bit_count() for v in self.votes.values())
        complete = self.complete()
        if not complete and largest <= self.phi:
            return None
        sources = self.sources()
        if sources and self.is_stable(sources):
            return sources
        return self.last_resort(sources) if complete else None

    def stable_prefix(self) -> list[int]:
        """GL-ToTo: sources of the longest stable prefix of M (Section 5)."""
        prefix: list[int] = []
        sources = self.sources()
        enough = self.tail >= self.n - self.phi
        for i in range(self.n):
            if not self.seen >> i & 1:
                break
            if i in sources:
                if not (enough or self.votes[i].bit_count() > self.phi):
                    break
                prefix.append(i)
            elif i in self.votes and not self._loses(i, self.votes):
                break
        return prefix


class EarlyDelivery:
    """Orders the messages of processes 0 .. n - 1, each numbered 1, 2, 3, ... by its sender.

    A message's past is a vector: how many messages of each process precede it (of its sender: its number less one).
    `insert` what is revealed, in any order but each sender's; then call `order` until it gives nothing. What is
    revealed at that moment must contain the past of everything in it.

    ordered: how many messages of each process are ordered, without those that GL-ToTo has ordered in the present
    activation: `early`, a bit mask. Inserting costs O(n), the end of an activation O(n · |M|).
    """

    def __init__(self, n: int, rule: str, phi: int):
        self.votes = self.votes_class(n, rule, phi)
        self.n = n
        self.ordered = [0] * n
        self.early = 0
        self.ended_at = 0
        self._first: list[deque[Sequence[int]]] = [deque() for _ in range(n)]
        self._latest: list[Sequence[int]] = [()] * n
        self._general_prefix = rule == "gl_toto"
        self._tails = rule == "toto"
        self._dirty = False

    votes_class = Votes

    def resume(self, ordered: Sequence[int], early: int) -> None:
        """Before the first `insert`: so much was ordered in an earlier life."""
        self.ordered = list(ordered)
        self.early = early

    def insert(self, process: int, past: Sequence[int]) -> None:
        """The next message of this process is revealed."""
        queue = self._first[process]
        queue.append(past)
        self._latest[process] = past
        if len(queue) == 1:
            self._cast(process, past)
        if self._tails:
            self._follow(process, past)

    def _cast(self, process: int, past: Sequence[int]) -> None:
        """The first message of a process in G votes; it may be a candidate."""
        votes, ordered, bit = self.votes, self.ordered, 1 << process
        self._dirty = True
        votes.seen |= bit
        for candidate in votes.votes:
            if past[candidate] > ordered[candidate]:
                votes.votes[candidate] |= bit
        if all(map(int.__le__, past, ordered)):
            mine = bit
            for other, queue in enumerate(self._first):
                if queue and other != process and queue[0][process] > ordered[process]:
                    mine |= 1 << other
            votes.votes[process] = mine
            if self._tails:
                tail = bit
                for other, latest in enumerate(self._latest):
                    if self._first[other] and latest[process] > ordered[process]:
                        tail |= 1 << other
                votes.tails[process] = tail

    def _follow(self, process: int, past: Sequence[int]) -> None:
        """Any message extends the tails of the candidates that it follows."""
        tails, bit = self.votes.tails, 1 << process
        for candidate in tails:
            if not tails[candidate] & bit and past[candidate] > self.ordered[candidate]:
                tails[candidate] |= bit
                self._dirty = True

    def order(self) -> list[tuple[int, int]]:
        """The next messages of the order, as (process, number); empty when nothing more can be ordered now.

        After it `ended_at` is N_tail(G) if an activation ended with these, else 0 (GL-ToTo's early prefixes)."""
        if not self._dirty:
            return []
        sources = self.votes.decide()
        if sources is None:
            self._dirty = False
            return self._order_prefix() if self._general_prefix else []
        self.ended_at = self.votes.tail
        new = [(p, self.ordered[p] + 1) for p in sources if not self.early >> p & 1]
        assert all(p in sources for p in range(self.n) if self.early >> p & 1), "a stable source is a source"
        self._next_activation(sources)
        return new or self.order()

    def _order_prefix(self) -> list[tuple[int, int]]:
        self.ended_at = 0
        new = [p for p in self.votes.stable_prefix() if not self.early >> p & 1]
        for p in new:
            self.early |= 1 << p
        return [(p, self.ordered[p] + 1) for p in new]

    def _next_activation(self, sources: Sequence[int]) -> None:
        for p in sources:
            self.ordered[p] += 1
            self._first[p].popleft()
        self.early = 0
        self.votes.clear()
        for p, queue in enumerate(self._first):
            if queue:
                self._cast(p, queue[0])

    def order_rest(self) -> list[tuple[int, int]]:
        """Nothing more will be revealed, and `order` gives nothing: all the rest, in an order that extends the causal
        one and depends on G alone. No process can have ordered any of it early."""
        rest: list[tuple[int, int]] = []
        while any(self._first):
            roots = [p for p, q in enumerate(self._first) if q and all(map(int.__le__, q[0], self.ordered))]
            assert roots, "what is revealed contains its past"
            for p in roots:
                if not self.early >> p & 1:
                    rest.append((p, self.ordered[p] + 1))
            for p in roots:
                self.ordered[p] += 1
                self._first[p].popleft()
            self.early = 0
        self.votes.clear()
        self._dirty = False
        return rest
