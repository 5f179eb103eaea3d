"""Histories of any database, judged from what its clients saw alone.

`history` reads them, `resolve` finds out who wrote what was read and which orders of versions are certain, `models`
says which consistency models hold, `cycles` names and explains what is wrong, `linearize` searches where values repeat.
Everything here is pure Python over one history; `jobs` spreads histories over Spark.
"""
