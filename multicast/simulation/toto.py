"""The statistics of the early-delivery paper by its own method: delivery rules on random causal DAGs.

"New Rules for Early Delivery in an Atomic Multicast System", Johnson and Maugis 1994, Section 7. The paper measures the
latency of a rule as N_tail(G), the number of processes that one has to hear from before a message is ordered, on its
test bed and on "simple simulations of a wider range of causal DAG", which it does not describe. Ours:

Each of n processes multicasts at random instants (Poisson, all at one rate). A message reaches each other process after
a delay drawn from half to one and a half times the mean, once everything that precedes it causally is there. The mean
delay, counted in messages that the whole system sends meanwhile, is the *width*: at 0 every message follows all earlier
ones, as on a bus; at n everybody has about one message on its way all the time. With several LANs the delay inside one
is a tenth of that between them. Some processes observe: each orders what it has, with every rule.

A message is *early* if it was ordered with N_tail(G) < n. Ends are cut off: the first and last 2n messages of the order
are not counted.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from multicast.parts.causal import RULES, EarlyDelivery, phi_range

INSIDE_A_LAN = 0.1

PAPER_TAIL = 5.12
PAPER_PROCESSES, PAPER_PHI = 8, 4
PAPER_SIMPLER, PAPER_PREFIX = 0.10, 0.05
_SEARCH_STEPS = 9


class Row(msgspec.Struct, kw_only=True):
    """What one rule did. n, phi, lans, width: the setting. concurrent: with how many other messages a message was
    concurrent, on average: the measured width of the DAG. tail: N_tail(G) when a message was ordered, on average.
    early: the share of all messages that were. votes: nvt of what was ordered, on average.
    gain: toto, g_toto: None. s_toto: of its early messages, the share that toto has not ordered at that moment.
    gl_toto: of all messages, the share that it orders before its activation ends, by the stable prefix."""

    rule: str
    n: int
    phi: int
    lans: int
    width: float
    concurrent: float
    messages: int
    tail: float
    early: float
    gain: float | None = None


class Dag:
    """A random causal DAG, and in which order each process came to know it.

    pasts: (process, number) -> vector. arrivals: for each process all messages in the order of their arrival.
    """

    def __init__(self, n: int, width: float, lans: int, messages: int, rng: random.Random):
        self.n = n
        self.pasts: dict[tuple[int, int], tuple[int, ...]] = {}
        self.arrivals: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        times: list[list[list[float]]] = [[[] for _ in range(n)] for _ in range(n)]
        order: list[list[tuple[float, int, int, int]]] = [[] for _ in range(n)]
        knows = [[0] * n for _ in range(n)]
        lan = [p * lans // n for p in range(n)]
        now = 0.0
        for k in range(messages):
            now += rng.expovariate(1.0)
            p = rng.randrange(n)
            for q in range(n):
                heard = times[p][q]
                while knows[p][q] < len(heard) and heard[knows[p][q]] <= now:
                    knows[p][q] += 1
            past = tuple(knows[p])
            number = past[p] + 1
            self.pasts[p, number] = past
            for q in range(n):
                if q == p:
                    at = now
                else:
                    mean = width if lan[p] != lan[q] or lans == 1 else width * INSIDE_A_LAN
                    at = now + mean * rng.uniform(0.5, 1.5)
                    at = max(at, *(times[q][r][c - 1] for r, c in enumerate(past) if c), now)
                times[q][p].append(at)
                order[q].append((at, k, p, number))
        for q in range(n):
            self.arrivals[q] = [(p, number) for _, _, p, number in sorted(order[q])]

    def concurrent(self) -> float:
        """With how many messages a message is concurrent, on average."""
        n = self.n
        columns: dict[tuple[int, int], list[int]] = {(p, q): [] for p in range(n) for q in range(n)}
        for (q, _), past in sorted(self.pasts.items()):
            for p in range(n):
                columns[p, q].append(past[p])
        total = 0
        for (p, number), past in self.pasts.items():
            for q in range(n):
                if q != p:
                    total += bisect_left(columns[p, q], number) - past[q]
        return total / len(self.pasts)


Found = dict[tuple[int, int], tuple[int, bool, int]]
"""Message -> N_tail(G) when it was ordered, whether that was by a stable prefix, and how many messages had come."""


def observe(dag: Dag, observer: int, rule: str, phi: int) -> Found:
    """What one process orders, and when."""
    one = EarlyDelivery(dag.n, rule, phi)
    found: Found = {}
    for come, (p, number) in enumerate(dag.arrivals[observer], 1):
        one.insert(p, dag.pasts[p, number])
        while True:
            tail = one.votes.tail
            new = one.order()
            if not new:
                break
            for message in new:
                found[message] = (one.ended_at or tail, not one.ended_at, come)
    ends = 2 * dag.n
    return dict(list(found.items())[ends:-ends])


def measure(dags: Sequence[Dag], rule: str, phi: int, lans: int, width: float, observers: int) -> Row:
    """One row: a rule on some DAGs of one setting."""
    n = dags[0].n
    tails = early = prefix = count = gained = 0
    for dag in dags:
        for observer in range(0, n, max(1, n // observers)):
            found = observe(dag, observer, rule, phi)
            count += len(found)
            for tail, by_prefix, _ in found.values():
                tails += tail
                early += tail < n
                prefix += by_prefix
            if rule == "s_toto":
                plain = observe(dag, observer, "toto", phi)
                gained += sum(tail < n and m in plain and plain[m][2] > come for m, (tail, _, come) in found.items())
    gains = {"s_toto": gained / early if early else 0.0, "gl_toto": prefix / count}
    return Row(
        rule=rule, n=n, phi=phi, lans=lans, width=width, messages=count,
        concurrent=sum(d.concurrent() for d in dags) / len(dags), tail=tails / count, early=early / count,
        gain=gains.get(rule),
    )  # fmt: skip


def draw(n: int, width: float, lans: int, messages: int, seed: int, dags: int) -> list[Dag]:
    """The DAGs of a setting: the same for every rule and threshold."""
    return [Dag(n, width, lans, messages, random.Random(f"{seed}/{n}/{width}/{lans}/{k}")) for k in range(dags)]


class Sweep(msgspec.Struct, kw_only=True):
    """What to measure."""

    processes: tuple[int, ...] = (4, 8, 12)
    widths: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    lans: tuple[int, ...] = (1, 2)
    messages: int = 300
    dags: int = 2
    observers: int = 4
    seed: int = 1

    def settings(self) -> Iterable[tuple[int, int, float]]:
        return [(n, lans, w) for n in self.processes for lans in self.lans for w in self.widths if lans <= n]

    def rows(self) -> Iterator[list[Row]]:
        """The rows of one setting after the other."""
        for n, lans, width in self.settings():
            dags = draw(n, width, lans, self.messages, self.seed, self.dags)
            yield [
                measure(dags, rule, phi, lans, width, self.observers) for rule in RULES for phi in phi_range(rule, n)
            ]

    def tail_at(self, width: float) -> float:
        """N_tail(G) of S-ToTo in the paper's setting, one LAN."""
        dags = draw(PAPER_PROCESSES, width, 1, self.messages, self.seed, self.dags)
        return measure(dags, "s_toto", PAPER_PHI, 1, width, self.observers).tail

    def width_for(self, tail: float) -> float | None:
        """How wide the DAG may be for the average N_tail(G) of the paper; None if it is exceeded at once."""
        low, high = 0.0, float(PAPER_PROCESSES)
        if self.tail_at(low) > tail:
            return None
        for _ in range(_SEARCH_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.tail_at(middle) <= tail else (low, middle)
        return low


def least_tail(n: int, phi: int, rule: str) -> int:
    """The least N_tail(G) at which a rule can order anything before all were seen."""
    return min(n, phi + 1 if rule in ("toto", "s_toto") else max(phi + 1, n - phi))
