"""The HTTP interface of a replica.

    connection  the connections of clients: bytes to requests, answers to bytes, in order
    calls       requests from head to answer: their time, the room for their bodies, the end of all
    app         routes: what each request asks of the replica, and how its outcome is rendered
    node        what they need of the replica
    access      who asks, and whether he may use the route
    latest      before somebody is refused: whether more rights were ordered meanwhile
    record      which requests stand in the log: slow ones, refused ones, and who did what
    about       the cluster, its limits, this interface
    admin       roles and tokens
    watching    watches: answers that go on as long as anything changes
    request     what paths, queries and header fields say
    answers     answers as bytes
    errors      answers other than success
    budget      how many bytes of requests may be under way
    metrics     what `/metrics` tells
"""
