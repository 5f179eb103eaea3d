"""Whole replicas (protocol, transactions, store) in the simulated world, with clients, faults and checks.

    python -m kvstore.simulated run --protocol all --seeds 0:20              random workloads under faults
    python -m kvstore.simulated schedules                                    every schedule, protocol, way to signal
    python -m kvstore.simulated schedule two-groups --signals off --out DIR  one of them, step by step
    python -m kvstore.simulated strictness --seeds 0:100                     random searches for anomalies

`cluster` puts replicas into a world, `clients` is the workload and its history, `checks` looks at the journals and the
history afterwards, `remembered` at what replicas keep besides rows, `given` at what they let go of meanwhile, `books`
at what they keep twice, `asking` at clients that nobody knows any more, `spinning` at who is woken for nothing, `idle`
at reads and watches when all is over, `contests` at ids that are used for two things, `steps` at moves that are
refused, `runner` joins them for a seed, in some with limits at their least (`narrow`). `schedules` scripts the
schedules that need execution signals, `chase` is a workload that hunts for them, `leasing` are clients that hold
leases, `peeking` read what their tokens may not, `late` are copies of requests that come late, by old maps of slots
that go there and back, `backups` makes cuts meanwhile and checks them, `strictness` compares what both show with what
protocols say of themselves. `run` and `schedule` write the run directory that the audit reads. `adapter` is for
`python -m multicast.simulation run --store`.
"""
