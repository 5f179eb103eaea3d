"""Building blocks that protocols share. Pure; each has a naive oracle in the tests. Message tags here are 100 and up.

A protocol owns its parts: it makes them, gives them what they may ask, and merges their handlers and timers into its
own. Parts do not know protocols. Behind each line: whose file leads to it, by itself or through another part.

Any protocol for real use
    delivered       what was delivered, for as long as anybody may ask; watermarks, garbage   (all but sequencer)
    behind          fetching deliveries that others tell of                      (replicated)
    deadlines       named timers                                                 (all but sequencer)
    options         options that all replicated groups have                      (replicated)
    inspection      the words of `MulticastProtocol.inspect`                     (all but sequencer)
    portions        large states in messages of limited size                     (replicated)

Stamps and the order that follows from them
    clock           the logical or hybrid clock that stamps messages             (skeens, sequencer)
    pending         the delivery queue of Skeen's protocol                       (skeens)
    history         what a snapshot holds of a protocol's state                  (white_box, primcast)
    window          which stamps of a message are too late to have effect        (all but sequencer)
    accepts         who has accepted a message, ballot by ballot                 (white_box)
    entries         which copy of a message is held under its id                 (white_box)
    stamps          a message's stamps, and when its final one is known          (primcast)
    group_clocks    what the members' clocks allow to conclude                   (primcast)
    known_copies    which copies of a message are known by its id                (primcast)
    sequence        T, the places of a group's proposed messages                 (primcast)

What was multicast here, and asking again
    submissions     what this process has multicast, until its delivery is known (skeens, toto)
    retries         what waits for an answer, and when to ask again              (skeens, toto)
    patience        when to ask again for what is large and comes slowly         (primcast, consensus)
    payloads        payloads of messages that this process has only heard of     (primcast)
    copies          two messages of one id in one order                          (quasi_genuine, toto)

Leaders
    ballots         states and messages of elections                             (replicated)
    timer           when to stop trusting a leader                               (replicated)
    detector        whether a leader is missed: pulses, and a question before each campaign  (replicated)
    reach           whether a process has the connections that it needs          (all but sequencer)
    election        who may lead: votes and ballots                              (replicated)
    leadership      how a leader brings its group into one state                 (white_box, primcast)
    founding        groups that are added while others work                      (white_box, primcast)
    rejoin          the return of a member that has lost its disk                (replicated)
    reads           from which delivery on a leader's state is fresh  (fastcast, ft_skeen, primcast, white_box)
    epoch_reads     the same where each process delivers by itself               (primcast)

Consensus, and a group that acts as one process by it
    paxos           Multi-Paxos: a log of values for one group                   (consensus)
    instances       the instances of its log: accepted, decided, forgotten       (consensus)
    transfer        taking over a peer's state when the log has gone on          (consensus)
    reminders       what a member without memory must have again                 (groups, quasi_genuine)
    learner         learning another group's decisions from its acceptors        (quasi_genuine)
    replicated      Skeen's protocol between such groups                         (groups)
    group_member    all that goes on inside one                                  (groups)
    group_log       the log of its stamps, and what is delivered by it           (groups)
    truncation      when its log is truncated                                    (groups)
    reign           leading it: from winning a ballot to stamping                (groups)
    reign_reads     from which delivery on its leader's state is fresh           (groups)

Barriers
    barriers        the words in which groups promise to say nothing earlier     (quasi_genuine)
    barrier_leader  what the leader of such a group knows                        (quasi_genuine)
    casts           what a process multicasts, until its group has decided it    (quasi_genuine)
    stream          a group's decisions as numbered messages to each group       (quasi_genuine)
    channels        what has come from each group, and its barrier               (quasi_genuine)
    early           optimistic deliveries                                        (quasi_genuine)

Views and causal order
    views           who takes part, and what is agreed when that changes         (toto)
    coordinator     who asks a view for its end, and proposes the next one       (toto)
    causal_view     causal multicast in a view, and what is safe in it           (toto)
    causal          ToTo's rules: one order from a causal DAG                    (toto)

all but sequencer: skeens, quasi_genuine, toto. skeens: skeen, white_box, primcast, groups. groups: ft_skeen, fastcast.
replicated: white_box, primcast, groups, quasi_genuine, toto. consensus: groups, quasi_genuine, toto.
"""
