"""The tables side by side: DataFrames in and out, which checks and searches begin with.

    relations   deliveries with their outcomes; messages, transactions, operations over all replicas
    edges       what every read should have returned, and who depends on whom
    columns     texts of ids, versions and keys; rows of violations
"""
