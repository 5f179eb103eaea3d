"""From the files of a run to tables of Parquet, what is missing in them, and what stands at a place in a file.

    sources     which files there are
    journals    journals: bytes to rows
    lives       one life of a replica after the other, in the order of its batches
    histories   what clients noted: lines to rows
    traces      the frames of a simulated run: lines to rows
    extraction  a run's files to tables, of which only what is new is made again
    tables      the tables on disk: which there are, whether they are as they were written, opened
    parquet     how tables are written
    merging     small files into one
    base        a run that is judged from one timestamp on
    inputs      which replicas and shards a run has, and what of them is missing
    show        one record, or one line
"""
