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

More processes are more such programs with other numbers and directories. `types` has the vocabulary, `protocol` the
interface, `registry` the protocols by name, `engine` the host's side without IO, `runtime` the live host over TCP,
`simulation` the simulated one, `records` the journal's format.
"""
