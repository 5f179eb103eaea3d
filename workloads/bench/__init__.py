"""How fast the store is: beside its own disk, beside etcd, by protocol. `kvstore bench` is the command.

    connection   one HTTP/1.1 request at a time on a kept connection, at the price of two system calls
    load         clients in closed or open loop: who asks what when, and what was answered
    store        what a store is for the load, and how requests to ours look
    kinds        what is asked for: puts, gets, transactions, YCSB's workloads
    ycsb         key distributions and mixes of the Yahoo! Cloud Serving Benchmark
    costs        what servers spent meanwhile: processor time, syncs, journal bytes, bundles
    results      what measurements say: their shape, what they were made on, and their tables
    measure      one line per kind and number of clients, of one running cluster
    wrk          the same requests sent by wrk
    grpc         unary calls of gRPC, as plainly as `connection` does HTTP/1.1
    clusters     clusters that are started for a while
    etcd         three nodes of etcd that are started for a while, and how requests to them look
    against      our store and etcd in turns, with ratios
    compare      all protocols, one after the other, in one table
    page         the page of published results
"""
