"""What the papers claim, and a criterion for each by which the simulation agrees or does not.

A claim is judged on the points of one figure. Where its criterion is not met, `otherwise` says why, as far as it is
understood. A claim whose points are missing is not judged. Criteria were written down before the figures were looked
at, but for two: the quantiles of leaders may be 2 ms above White-Box's, whose leaders are as quick in theory; and the
convoy figure's claim must hold at every load. "High load" is 128 messages per client in the paper and in full runs, and
16 with --quick: how much of the convoy a hybrid clock removes depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multicast.simulation.experiments.figures import (
    EARLY,
    FASTCAST,
    FASTCAST_SINGLE,
    HYBRID,
    PRIMCAST,
    SKEEN,
    SKEEN_SINGLE,
    WHITE_BOX,
    Results,
)
from multicast.simulation.experiments.load import ALONE, Measured, Variant, quantile


class Verdict(msgspec.Struct):
    """ours: the figures. agrees: whether the criterion is met."""

    ours: str
    agrees: bool


Judge = Callable[[Results], Verdict | None]
"""None: what it needs was not measured."""


class Claim(msgspec.Struct, kw_only=True):
    """figure: its name. source, text: the paper's. otherwise: why, if it does not agree."""

    figure: str
    source: str
    text: str
    criterion: str
    judge: Judge
    otherwise: str = ""


class Judged(msgspec.Struct, kw_only=True):
    """A claim with its verdict. agrees: "yes", "no" or "not measured". reason: with "no" only."""

    figure: str
    source: str
    claim: str
    criterion: str
    ours: str
    agrees: str
    reason: str


def judge(claim: Claim, results: Results) -> Judged:
    """One claim on what was measured for its figure."""
    verdict = claim.judge(results)
    agrees = "not measured" if verdict is None else "yes" if verdict.agrees else "no"
    return Judged(
        figure=claim.figure, source=claim.source, claim=claim.text, criterion=claim.criterion,
        ours="" if verdict is None else verdict.ours, agrees=agrees, reason=claim.otherwise if agrees == "no" else "",
    )  # fmt: skip


# -- criteria ----------------------------------------------------------------------------------------------------------


def p95_ms(one: Measured) -> float:
    """The 95th percentile of the latencies of all clients."""
    return quantile(one.all, 0.95) / 1e3


def median_ms(one: Measured) -> float:
    """Of the latencies of all clients."""
    return quantile(one.all, 0.5) / 1e3


def ahead(of: tuple[Variant, ...], by_ms: float, tolerance_ms: float, destinations: int = 2) -> Judge:
    """PrimCast's median at clients of followers, messages alone, against the quickest of `of`."""

    def judged(results: Results) -> Verdict | None:
        first = results.get(PRIMCAST, destinations, ALONE)
        others = [one for v in of if (one := results.get(v, destinations, ALONE)) is not None]
        if first is None or not others:
            return None
        ours = quantile(sorted(first.followers), 0.5) / 1e3
        theirs = min(quantile(sorted(one.followers), 0.5) for one in others) / 1e3
        gap = theirs - ours
        return Verdict(f"{gap:.1f} ms ({ours:.1f} against {theirs:.1f})", abs(gap - by_ms) <= tolerance_ms)

    return judged


def lower_everywhere(than: tuple[Variant, ...], destinations: int = 2) -> Judge:
    """PrimCast's p95 below those of `than` at every load."""

    def judged(results: Results) -> Verdict | None:
        loads = results.loads(destinations, PRIMCAST, *than)
        if not loads:
            return None
        lines, good = [], True
        for load in loads:
            p95 = [p95_ms(one) for v in (PRIMCAST, *than) if (one := results.get(v, destinations, load)) is not None]
            lines.append(f"{load}: {' / '.join(f'{value:.2f}' for value in p95)}")
            good &= p95[0] == min(p95)
        titles = " / ".join(v.title for v in (PRIMCAST, *than))
        return Verdict(f"p95 in ms of {titles} at load {', '.join(lines)}", good)

    return judged


def saturates_first(first: Variant, others: tuple[Variant, ...]) -> Judge:
    """The highest throughput of `first` is below that of each other, whatever the number of destinations."""

    def judged(results: Results) -> Verdict | None:
        lines, good = [], True
        for k in results.destinations():
            peaks = [results.peak(v, k) for v in (first, *others)]
            least, *rest = [peak for peak in peaks if peak is not None] or [0.0]
            if len(rest) != len(others):
                return None
            good &= least < min(rest)
            lines.append(f"k = {k}: {' / '.join(f'{peak / 1e3:.1f}' for peak in (least, *rest))}")
        titles = " / ".join(v.title for v in (first, *others))
        return Verdict(f"thousands a second of {titles}, {', '.join(lines)}", good) if lines else None

    return judged


def times_throughput(of: Variant, over: Variant, least: dict[int, float] | float, most_loaded: bool = False) -> Judge:
    """The throughput of `of` is at least so many times that of `over`; per number of destinations, or for every. The
    highest of each, or both at the highest load."""

    def judged(results: Results) -> Verdict | None:
        lines, good = [], True
        wanted = dict.fromkeys(results.destinations(), least) if isinstance(least, float | int) else least
        for k, bound in wanted.items():
            a, b = results.peak(of, k), results.peak(over, k)
            loads = results.loads(k, of, over)
            if most_loaded and loads:
                first, second = results.get(of, k, loads[-1]), results.get(over, k, loads[-1])
                a, b = (None if one is None else one.throughput for one in (first, second))
            if not a or not b:
                return None
            good &= a / b >= bound
            lines.append(f"k = {k}: {a / b:.2f}")
        return Verdict(", ".join(lines), good) if lines else None

    return judged


def same_p95(first: Variant, others: tuple[Variant, ...], within: float) -> Judge:
    """At the lowest load, for every number of destinations; against the quickest of `others`."""

    def judged(results: Results) -> Verdict | None:
        lines, good = [], True
        for k in results.destinations():
            loads = results.loads(k, first, *others)
            if not loads:
                continue
            one = results.get(first, k, loads[0])
            rest = [p95_ms(m) for v in others if (m := results.get(v, k, loads[0])) is not None]
            if one is not None and rest:
                good &= abs(min(rest) / p95_ms(one) - 1) <= within
                lines.append(f"k = {k}: {p95_ms(one):.3g} against {min(rest):.3g} ms")
        return Verdict(", ".join(lines), good) if lines else None

    return judged


def later_p95(late: Variant, than: Variant, by_ms: float) -> Judge:
    """At the lowest load, for every number of destinations."""

    def judged(results: Results) -> Verdict | None:
        lines, good = [], True
        for k in results.destinations():
            loads = results.loads(k, late, than)
            a, b = (results.get(v, k, loads[0]) if loads else None for v in (late, than))
            if a is not None and b is not None:
                good &= p95_ms(a) - p95_ms(b) >= by_ms
                lines.append(f"k = {k}: {p95_ms(a) - p95_ms(b):.0f}")
        return Verdict(f"{', '.join(lines)} ms later", good) if lines else None

    return judged


def convoy_removed(
    share: float, of: Callable[[Measured], float], what: str, destinations: int = 2, everywhere: bool = False
) -> Judge:
    """How much of `of`'s excess over messages alone the hybrid clock takes away, at the highest load or at every."""

    def judged(results: Results) -> Verdict | None:
        alone = [results.get(variant, destinations, ALONE) for variant in (PRIMCAST, HYBRID)]
        loads = results.loads(destinations, PRIMCAST, HYBRID)
        lines, good = [], True
        for load in loads if everywhere else loads[-1:]:
            loaded = [results.get(variant, destinations, load) for variant in (PRIMCAST, HYBRID)]
            excess = [of(b) - of(a) for a, b in zip(alone, loaded, strict=True) if a is not None and b is not None]
            if len(excess) < 2:
                return None
            removed = 1 - excess[1] / excess[0] if excess[0] > 0 else 0.0
            good &= removed >= share
            lines.append(f"load {load}: {excess[0]:.1f} / {excess[1]:.1f} ms, {removed:.0%} removed")
        text = f"{what} above that alone, logical / hybrid: {'; '.join(lines)}"
        return Verdict(text, good) if lines else None

    return judged


def lower_quantiles(than: tuple[Variant, ...], but_ms: float, destinations: int = 2) -> Judge:
    """PrimCast's quantiles from 5 to 95 % are below those of `than`, or above by at most `but_ms`, at the lowest load,
    at followers and at leaders."""

    def judged(results: Results) -> Verdict | None:
        loads = results.loads(destinations, PRIMCAST, *than)
        first = results.get(PRIMCAST, destinations, loads[0]) if loads else None
        others = [results.get(v, destinations, loads[0]) for v in than] if loads else []
        if first is None or not others:
            return None
        worst = float("inf")
        for one in others:
            assert one is not None
            for ours, theirs in ((first.leaders, one.leaders), (first.followers, one.followers)):
                mine, other = sorted(ours), sorted(theirs)
                for percent in range(5, 96, 5):
                    worst = min(worst, quantile(other, percent / 100) - quantile(mine, percent / 100))
        text = f"at least {worst / 1e3:.1f} ms lower" if worst > 0 else f"up to {-worst / 1e3:.1f} ms higher"
        return Verdict(text, worst >= -but_ms * 1e3)

    return judged


def below_leaders(of: Variant, destinations: int = 2) -> Judge:
    """PrimCast's mean at all clients is below that of `of` at clients of leaders, at the lowest load."""

    def judged(results: Results) -> Verdict | None:
        loads = results.loads(destinations, PRIMCAST, of)
        first, second = (results.get(v, destinations, loads[0]) if loads else None for v in (PRIMCAST, of))
        if first is None or second is None or not second.leaders:
            return None
        leaders = sum(second.leaders) / len(second.leaders) / 1e3
        return Verdict(f"{first.mean_us / 1e3:.1f} against {leaders:.1f} ms", first.mean_us / 1e3 < leaders)

    return judged


def degrades(of: Variant, against: Variant) -> Judge:
    """The highest throughput of `of`, as a share of that of `against`, is lower with the most destinations than with
    one."""

    def judged(results: Results) -> Verdict | None:
        shares = []
        for k in results.destinations():
            a, b = results.peak(of, k), results.peak(against, k)
            if a and b:
                shares.append((k, a / b))
        if len(shares) < 2:
            return None
        text = ", ".join(f"k = {k}: {share:.2f}" for k, share in shares)
        return Verdict(f"{of.title} / {against.title}, {text}", shares[-1][1] < shares[0][1])

    return judged


def recovery_takes(of: Variant, cleared_s: float, factor: float = 2.0) -> Judge:
    """From the crash until what was held up is delivered: within this factor. The time until there is a new leader is
    a part of it."""

    def judged(results: Results) -> Verdict | None:
        for one in results.recovered:
            if one.point.variant == of:
                if one.leader_us is None or one.cleared_us is None or one.resumed_us is None:
                    return Verdict("did not recover", False)
                cleared = one.cleared_us / 1e6
                text = (
                    f"cleared after {cleared:.2f} s: leader after {one.leader_us / 1e6:.2f} s (of it 0.25 to 0.5 s are"
                    f" this implementation's patience, by default, with a leader to which the connection is lost),"
                    f" first new delivery after {one.resumed_us / 1e6:.2f} s, {one.held} messages held up"
                )
                return Verdict(text, cleared_s / factor <= cleared <= cleared_s * factor)
        return None

    return judged


# -- the papers' claims ------------------------------------------------------------------------------------------------

_PRIMCAST = "PrimCast paper, Section"
_WHITE_BOX = "White-Box paper, Section"

_HYBRID = (
    "at low load the convoy is nearly gone; at high load there is always a message of the own group, multicast up to"
    " one cross-group delay later, whose stamp here is lower and whose stamp there is not known yet. The paper's own"
    " bound (Section 6: one delay more than alone instead of two) then is the usual case, and the gain is in the tail"
)
_MERGED = (
    "our consensus decides all that waits as one instance, so under load fault-tolerant Skeen and FastCast send far"
    " fewer messages for each multicast than their formulas say (sent_per_multicast in the CSV), White-Box does not"
)
_BUSIEST = (
    "White-Box sends fewer messages for each multicast (sent_per_multicast in the CSV), but most of them go to its"
    " leaders, FastCast's votes to all members alike; with several destinations the busiest process is about as busy"
)
_FEW_SAMPLES = "within what so few samples and a deviation of 5 % of the delays can tell"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        figure="lan", source=f"{_PRIMCAST} 7.3",
        text="PrimCast performs better than FastCast and White-Box at every load",
        criterion="PrimCast has the lowest p95 at every load", judge=lower_everywhere((WHITE_BOX, FASTCAST)),
    ),
    Claim(
        figure="lan", source=f"{_PRIMCAST} 7.3", text="FastCast saturates first",
        criterion="its highest throughput is the lowest", judge=saturates_first(FASTCAST, (WHITE_BOX, PRIMCAST)),
    ),
    Claim(
        figure="lan", source=f"{_PRIMCAST} 7.3", text="hybrid clocks make no particular difference",
        criterion="p95 within 10 % at the lowest load", judge=same_p95(PRIMCAST, (HYBRID,), 0.10),
    ),
    Claim(
        figure="lan-destinations", source=f"{_WHITE_BOX} VI",
        text="White-Box has 1.2 to 3.5 times FastCast's throughput",
        criterion="at least 1.2 times at the highest load, for every number of destinations, with a consensus instance"
        " for each command",
        judge=times_throughput(WHITE_BOX, FASTCAST_SINGLE, 1.2, most_loaded=True), otherwise=_BUSIEST,
    ),
    Claim(
        figure="lan-destinations", source=f"{_WHITE_BOX} VI",
        text="the same against a FastCast whose consensus merges what waits",
        criterion="at least 1.2 times at the highest load, for every number of destinations",
        judge=times_throughput(WHITE_BOX, FASTCAST, 1.2, most_loaded=True), otherwise=_MERGED,
    ),
    Claim(
        figure="lan-destinations", source=f"{_WHITE_BOX} VI",
        text="in a LAN FastCast is slightly worse than fault-tolerant Skeen",
        criterion="Skeen has at least as much throughput at the highest load, for every number of destinations, both"
        " with a consensus instance for each command",
        judge=times_throughput(SKEEN_SINGLE, FASTCAST_SINGLE, 1.0, most_loaded=True),
        otherwise="where this load does not saturate Skeen, its longer latency is what limits a closed loop",
    ),
    Claim(
        figure="lan-destinations", source=f"{_WHITE_BOX} VI", text="the same where consensus merges what waits",
        criterion="Skeen has at least as much throughput at the highest load, for every number of destinations",
        judge=times_throughput(SKEEN, FASTCAST, 1.0, most_loaded=True),
        otherwise="where this load does not saturate Skeen, its longer latency is what limits a closed loop",
    ),
    Claim(
        figure="wan-destinations", source=f"{_WHITE_BOX} VI",
        text="White-Box has 1.1 to 3.1 times FastCast's throughput",
        criterion="at least 1.1 times at the highest load, for every number of destinations, with a consensus instance"
        " for each command",
        judge=times_throughput(WHITE_BOX, FASTCAST_SINGLE, 1.1, most_loaded=True), otherwise=_BUSIEST,
    ),
    Claim(
        figure="wan-destinations", source=f"{_WHITE_BOX} VI",
        text="the same against a FastCast whose consensus merges what waits",
        criterion="at least 1.1 times at the highest load, for every number of destinations",
        judge=times_throughput(WHITE_BOX, FASTCAST, 1.1, most_loaded=True), otherwise=_MERGED,
    ),
    Claim(
        figure="wan-colocated", source=f"{_PRIMCAST} 7.4",
        text="PrimCast and FastCast have the same latency until close to saturation",
        criterion="p95 within 10 % at the lowest load, FastCast with its quicker clock",
        judge=same_p95(PRIMCAST, (FASTCAST, EARLY), 0.10),
        otherwise="with several destinations a hard stamp leaves the other group's leader after its decision, a round"
        " trip to its followers; a client far from the leaders has PrimCast's acknowledgements from replicas beside it"
        " sooner",
    ),
    Claim(
        figure="wan-colocated", source=f"{_PRIMCAST} 7.4", text="White-Box's extra step shows in the 95th percentile",
        criterion="at least 30 ms (the shortest delay between data centres) above PrimCast's at the lowest load",
        judge=later_p95(WHITE_BOX, PRIMCAST, 30),
    ),
    Claim(
        figure="wan-colocated", source=f"{_PRIMCAST} 7.4", text="hybrid clocks have no effect",
        criterion="p95 within 10 % at the lowest load", judge=same_p95(PRIMCAST, (HYBRID,), 0.10),
    ),
    Claim(
        figure="wan-saturation", source=f"{_PRIMCAST} 7.4",
        text="PrimCast delivers 1.6 (1 destination) to 5 times (2) FastCast's throughput",
        criterion="highest throughputs, at least these ratios, and 1.6 with 4 and 8 destinations; with a consensus"
        " instance for each command",
        judge=times_throughput(PRIMCAST, FASTCAST_SINGLE, {1: 1.6, 2: 5.0, 4: 1.6, 8: 1.6}),
        otherwise="the paper attributes part of it to PrimCast's two threads; here everybody has one",
    ),
    Claim(
        figure="wan-saturation", source=f"{_PRIMCAST} 7.4",
        text="the same against a FastCast whose consensus merges what waits",
        criterion="the same ratios",
        judge=times_throughput(PRIMCAST, FASTCAST, {1: 1.6, 2: 5.0, 4: 1.6, 8: 1.6}), otherwise=_MERGED,
    ),
    Claim(
        figure="wan-saturation", source=f"{_PRIMCAST} 7.4",
        text="FastCast degrades faster with increasing destinations",
        criterion="its share of PrimCast's highest throughput is lower with 8 destinations than with 1, with a"
        " consensus instance for each command",
        judge=degrades(FASTCAST_SINGLE, PRIMCAST),
        otherwise="PrimCast's messages grow with k²n², FastCast's with k²n: with processors as the limit the one that"
        " sends most degrades fastest",
    ),
    Claim(
        figure="wan-saturation", source=f"{_PRIMCAST} 7.4", text="FastCast saturates first",
        criterion="its highest throughput is the lowest, with a consensus instance for each command",
        judge=saturates_first(FASTCAST_SINGLE, (WHITE_BOX, PRIMCAST)),
        otherwise="with several destinations PrimCast's k²n² acknowledgements cost more than FastCast's two paths",
    ),
    Claim(
        figure="wan-distributed", source=f"{_PRIMCAST} 7.5",
        text="PrimCast is one intra-group delay, about 15 ms, ahead of White-Box at followers",
        criterion="medians at followers, messages alone: 15 ± 3 ms", judge=ahead((WHITE_BOX,), 15, 3),
    ),
    Claim(
        figure="wan-distributed", source=f"{_PRIMCAST} 7.5",
        text="PrimCast is one intra-group delay, about 15 ms, ahead of FastCast",
        criterion="medians at followers, messages alone, FastCast with its quicker clock: 15 ± 3 ms",
        judge=ahead((FASTCAST, EARLY), 15, 3),
    ),
    Claim(
        figure="wan-distributed", source=f"{_PRIMCAST} 7.5", text="hybrid clocks greatly reduce the convoy",
        criterion="at least half of p95's excess over messages alone is gone at the highest load",
        judge=convoy_removed(0.5, p95_ms, "p95"), otherwise=_HYBRID,
    ),
    Claim(
        figure="cdf", source=f"{_PRIMCAST} 7.5", text="PrimCast has lower latencies at every replica at low load",
        criterion="quantiles from 5 to 95 % below White-Box's and FastCast's or at most 2 ms above (White-Box's leaders"
        " deliver after 3 delays, too), at leaders and at followers",
        judge=lower_quantiles((WHITE_BOX, FASTCAST), 2.0), otherwise=_FEW_SAMPLES,
    ),
    Claim(
        figure="cdf", source=f"{_PRIMCAST} 7.5", text="hybrid clocks almost eliminate the convoy at high load",
        criterion="at least three quarters of the median's excess over messages alone is gone",
        judge=convoy_removed(0.75, median_ms, "median"), otherwise=_HYBRID,
    ),
    Claim(
        figure="cdf", source=f"{_PRIMCAST} 7.5",
        text="even White-Box's leaders deliver later than PrimCast, at low load",
        criterion="PrimCast's mean at all clients is below White-Box's at leaders", judge=below_leaders(WHITE_BOX),
    ),
    Claim(
        figure="convoy", source=f"{_PRIMCAST} 7.5", text="hybrid clocks nearly remove the convoy effect",
        criterion="at least three quarters of the mean's excess over messages alone is gone, at every load",
        judge=convoy_removed(0.75, lambda one: one.mean_us / 1e3, "mean", everywhere=True), otherwise=_HYBRID,
    ),
    Claim(
        figure="recovery", source=f"{_WHITE_BOX} VI",
        text="a group recovers in 6 s from its leader's crash: 2.5 s until there is a new one, 3.5 s to clear what was"
        " interrupted",
        criterion="6 s in all, within a factor of two: how soon there is a leader is a matter of the time-out that is"
        " set, which the paper does not say",
        judge=recovery_takes(WHITE_BOX, 6.0),
        otherwise="the time-out is shorter here, above all where the connection to a dead leader is lost, and a new"
        " leader asks at once about all that is unfinished, many messages in one question",
    ),
)  # fmt: skip
