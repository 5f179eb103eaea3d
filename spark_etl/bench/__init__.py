"""How fast the checks are.

    inputs      the tables of a large run, correct but for what is asked for
    histories   a history of lists
    measure     seconds of the clock and of processors, and memory, of one audit
    rows        the table of all of them
"""
