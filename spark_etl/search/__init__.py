"""Searches for cycles, which decide where a certificate proves nothing.

    cycles          components and shortest cycles, on arrays of integers
    serialization   cycles of dependencies and real time, with a sentence per edge
    consistency     which consistency models hold, by what is on cycles
"""
