"""The audit of one run: every property in turn, and the log lines that prove what is violated.

    runner       extraction, then the properties, group by group
    case         the run under audit: its frames, and what was found so far
    noted        what is wrong with the histories themselves
    answered     what clients were told
    guarantees   sessions, keys, and the table of consistency models
    course       what happened when
    ahead        what checks find, some of it before their turn, beside the others
    moved        what moves of slots handed over
    traced       what a simulated run's trace says
    evidence     the log lines behind a violation
"""
