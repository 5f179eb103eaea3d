"""The checks: functions from DataFrames to a DataFrame of violations (`schemas.VIOLATIONS`). No IO.

    delivery       the properties of atomic multicast, from what every replica delivered
    genuineness    who took part in a message, from the frames of a simulated run
    transactions   what replicas say their transactions did: complete, alike, and as the order says
    clients        what clients were told, and real time
    moves          slots that go from shard to shard: their steps, and the rows that go with them
    values         what clients asked and were told, value by value
    replay         a transaction once more, on the values that it read
    positions      reads that a leader answered from a position of its log
    promises       reads of several shards, snapshots, and reads that may be old
    watches        what watches told
    leases         what is attached to leases, and goes with them
    ranges         what histories say of ranges that were read
    sessions       session guarantees
    bank           the bank's total
    workloads      ring, long fork, set, counter

How to add one: "Add a check" in `spark_etl/README.md`.
"""
