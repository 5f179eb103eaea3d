"""The simulated host: protocols and stores, the very code that runs live, in a world that is drawn from a seed.

One run
    runner        one seed, one run: draw, let it happen, heal, demand progress, check
    drawing       what a seed draws: sizes, options, conditions
    narrow        limits that are seldom met, at their least
    endings       how a run ends once its faults are over
    probe         what is multicast to see how soon it is delivered
    stalls        who is healed goes on soon, whatever is still owed
    parting       links that stay broken while all others work
    batches       many seeds, in one or several processes
    beside        the same work on many items, in several processes
    worlds        other worlds than that of bare protocols: the store's

The world
    world         engines, sessions and journals on what follows: what happens, in the order of time
    scene         the processes, and what they share
    network       FIFO links with sessions
    catching_up   what a process reads and keeps for whoever is behind
    disk          a disk that tells what was synced from what was written
    dropping      old segments of journals go, as in the live host
    observe       what can be seen of a process from outside

Faults
    fault         one fault
    faults        the kinds, and drawing them
    gaps          faults at instants that random ones seldom hit
    forgotten     faults of several steps that end with something forgotten
    stragglers    a message comes again when all but one have forgotten it
    injector      lets faults happen
    joins         members come and go
    growing       a group is added
    hanging       syncs that take so long that a disk hangs, and who is told of it
    casualties    what they have done, and who may still be hit

Checks
    checkers      what every atomic multicast owes
    invariants    what single protocols owe
    reading       who reads in random runs, and whether the answers are fresh
    true_time     whether stamps keep to the time
    recovery      would every process come back if the power failed now?
    memory        what it must know then
    elections     has who leads the votes of a quorum, and may who lost its disk come back?
    horizons      what a PrimCast process counts on, majorities have said, and it is so
    reigns        does what was known in one ballot go with it?
    logs          does a group's log amount to the same at all of its members?
    transfers     is the state that is asked for taken from one peer after another, and kept?
    views         does who has stopped, or is incomplete, in a ToTo view keep to it?
    vouching      is on disk what a process vouches for, and does no message overtake another?
    watermarks    has a majority of a group what other groups hear that the group has?
    books         does what a process keeps twice agree?
    bounds        does a process keep no more than its options say, and say nothing twice at once?
    timers        has what waits for somebody else a timer, and does the host know it?
    remembered    is what was delivered remembered as long as somebody may ask for it?
    owed          is a protocol told what its host owes it?
    leftovers     what a process keeps when everything is over
    stays         what it keeps of what was over before a restart
    quiet         what it says then

Other ways to look
    model         a small run as states and actions
    explore       every order of it, exhaustively
    mutants       planted bugs: after how many seeds each is found
    reached       which handlers and branches runs reach
    trace         one run as lines of JSON
    clocks        what a wrong clock does
    toto          how early the ToTo family orders messages
    latency       latencies in message delays, beside the papers' (a package)
    experiments   the papers' figures (a package)
    pages         measured tables in the protocols' pages

The command line
    cli           what its commands share
    commands      one module per command (a package)
"""
