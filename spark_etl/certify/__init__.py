"""Certificates: kernels of NumPy and Arrow that prove what they can of a run, and accuse nobody.

    arrays       columns as arrays: ranks, groups
    log          one shard's journals against one another
    key          reads against writes, key by key
    id           messages and transactions across shards
    client       what clients were told against what the journals hold
    seen         the reads that clients were told of, against those of the journals
    time         real time and sessions against the order of versions; reads at positions
    promise      reads of several shards, snapshots, and reads that may be old
    precedence   real time where the order of versions runs against it
    near         what reads that are suspect have to do with, cut out of the tables
    value        transactions executed once more
    bank         the bank's total
    slices       the course of a run
    proof        what was proved, and by which kernels: the table of properties
    source       the tables, as kernels read them
    windows      tables bit by bit
    shards       the logs and keys of a long shard, window by window
    runs         messages, transactions and clients of a long run, window by window
    tasks        the kernels as tasks of Spark
    proving      the tasks in their turn, and what they found
    daemon       of Spark's Python workers

A kernel is a function of Arrow tables that returns numbers, or raises `arrays.Suspect`. What is not proved is left to
the checks of `spark_etl.checks`, which decide and explain.
"""
