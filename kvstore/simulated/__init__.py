"""Whole replicas (protocol, transactions, store) in the simulated world, with clients, faults and checks.

    python -m kvstore.simulated run --protocol white_box --seeds 0:20       random workloads under faults
    python -m kvstore.simulated schedule two-groups --signals off --out DIR  the schedules that need execution signals

`cluster` puts replicas into a world, `clients` is the workload and its history, `checks` looks at the journals and the
history afterwards, `schedules` scripts the two schedules. Both commands write the run directory that the audit reads.
"""
