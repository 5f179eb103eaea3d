"""Histories of any database, judged from what its clients saw alone.

`history` reads them, `resolve` finds out who wrote what was read and which orders of versions are certain, `models`
says which consistency models hold, `cycles` names and explains what is wrong, `linearize` searches where values repeat.
Long histories of lists that are right are proved to be so by `lists`, on arrays. Everything here is about one history;
`jobs` spreads histories over Spark.
"""
