"""The core of a replica: from transactions that are ordered to results. Pure.

    replica     one replica of a shard: executes what is delivered, in that order
    clients     requests of clients, and the results that they and other replicas ask for
    requests    the clients of this replica that wait for results
    lookups     what became of a transaction, by its id
    reads       reads of what a shard has now, without an order
    positions   from which delivery on a replica's state is fresh enough for them
    collects    reads of several shards, or of another one, without an order
    versions    reads at a version, of all shards at one point of the order
    changes     what has changed in a shard, for those who watch
    watches     the changes of all shards in one order, for the clients of a replica
    signals     what the shards of a transaction tell one another: signals and votes
    bundler     which requests leave together as one bundle, and when
    log         what is delivered and not yet complete, and when a shard may signal it
    bundles     what is ordered as one multicast message: many transactions
    plans       what of a transaction concerns one shard
    execution   one transaction on one shard: its vote, its reads and writes
    fates       how a transaction ends, by who knows that before it runs
    accounts    what a replica's journal says of the bundles that it completes
    messages    what replicas tell one another, and what clients ask and are answered
    leases      when the leases of the shard expire
    moves       slots that move from one shard to another
    rights      whether the holder of a token may do what a transaction does
    shards      which shards can take transactions, by what their leaders say
    peers       who leads which shard, and whom to ask
    rows        a row as bytes: value, versions, lease
    state       what a replica needs of its storage
    audit       what the journal and clients' histories say of transactions, for the audit to read
"""
