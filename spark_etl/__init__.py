"""The audit: what replicas did, from their own journals and the clients' histories, checked with Spark.

    python -m spark_etl audit|extract|check|report RUN_DIR [--out DIR] [--json FILE] [--html FILE] [--master local[*]]
                                                   [--memory 2g] [--no-history]
    python -m spark_etl watch RUN_DIR
    python -m spark_etl check-history FILE|DIR [--json FILE] [--html FILE]
    python -m spark_etl show FILE PLACE
    python -m spark_etl bench

Exit status: 0 valid, 1 violated, 2 could not decide (input missing or damaged; the report says which file and byte).

Theory of operation. `ingest` parses journals and histories, keeps what it finds as Parquet, in the tables of `schemas`,
reads only what is new, and judges what is missing. `certify` proves most runs right in two jobs of Spark. What is not
proved is decided and explained: `frames` puts the tables side by side: every replica's deliveries and outcomes (the
log), every message over all replicas, every operation of a client. `checks` are functions from those frames to frames
of violations. A version is its writer's timestamp, so one window per key says what every read should have returned;
if it did, the order of versions is a witness of serializability, and of strict serializability if no operation ended
before the invocation of one that precedes it. If that fails it proves nothing: `search` then decides by cycles, and
explains a shortest one. `audit` runs all of it, and finds the log lines behind a violation. `report` is the result as
data and as a table, `page` the same as a page; `names` lists the properties and violations. `stages`, `jobs`, `session`
and `gateway` are the command line and Spark; `watch` follows a run that goes on. `blackbox` judges histories of any
database, and `bench` measures.

What is no violation: a replica that is behind at the end (only a later position of its own, or what it said at a
clean stop, proves a loss); a message that some destination has not delivered yet (only a later version there proves a
miss); a batch without its end at the very end of a killed replica's journal; a lost record of who multicast a message
whose entry replica crashed. Such things are "pending", or notes. What a damaged or missing journal does not say is
never evidence. Genuineness is judged where a simulation left a trace of its frames. Not checked: what a
range did not return (only the state digests see that).
"""

import warnings

# Printed by pyspark at import when it finds a newer pandas; nothing here uses pandas.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")
