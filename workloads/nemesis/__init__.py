"""Nemesis: a real cluster under seeded faults and load, judged by the audit. `kvstore nemesis` is the command.

    run         one run: cluster, clients, faults, audit, and the table of what happened
    faults      what can go wrong with a replica, one function each, and which of them a protocol claims to survive
    operations  what operators do meanwhile
    cluster     the replicas as processes, and what is done to them
    network     everything that they tell one another passes a proxy here, which can cut, slow and break it
    load        the clients: bank, ring, registers, lists
    gaps        how long each shard stood still, and on what
"""
