"""Atomic multicast as a library: ordered, replicated messages to groups of processes. No store needed.

A message goes to one or more groups; every process of these groups delivers it, and all deliver common messages in one
order, although groups share no coordinator. One process on this machine, ten lines:

    import asyncio
    from multicast.runtime import local_host
    from multicast.types import AppMessage, Topology, new_message_id

    async def main():
        delivered = asyncio.Queue()
        async with local_host("skeen", Topology.grid(1, 1), 0, "data-0", {0: ("127.0.0.1", 7000)},
                              on_deliver=lambda position, message, timestamp: delivered.put_nowait(message)) as host:
            host.submit(AppMessage(new_message_id(host.now(), 42), (0,), b"hello", origin=0))
            print((await delivered.get()).payload)

    asyncio.run(main())

More processes are more such programs with other numbers and directories. `GLOSSARY.md` has the words.

    types        processes, groups, messages, timestamps, ballots, topology
    membership   views of groups: who belongs to them when, and what is a majority
    protocol     the interface between a protocol and its host
    application  the interface between that host and what deliveries are for
    registry     protocols by name
    protocols    one file each (a package)
    parts        what protocols share (a package)
    engine       the host's side of the interface, without IO: lanes, numbering
    batch        what a host has to do after a run of the engine
    catch_up     which member is asked for deliveries that this process misses
    snapshot     giving and fetching what no journal holds any more
    discipline   how far a process believes its own wall clock
    wire         what travels between processes, and its limits
    session      reliable FIFO sessions over links that break
    records      the journal's records: what an audit reads
    lanes        one FIFO per link, of what waits for the disk
    recorder     what a process writes into its journal: every payload once
    disk         what a journal needs of the disk that it is on
    segments     what a journal keeps beside its segments: where it begins, what is in each
    journal      the journal of one process: segments of records on a disk
    reader       reading its records, each with the payloads that it refers to
    checkpoint   what a protocol has saved up to an offset of its journal
    retention    how much of a journal stays: the archive, and what nobody needs any longer
    install      what a snapshot puts into the journal, between two lives
    logs         structlog for the hosts
    runtime      the live host, over TCP (a package)
    simulation   the simulated host (a package)
    visual       worlds and runs in the browser (a package)
    bench        how fast it is alone, in memory
"""
