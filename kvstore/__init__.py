"""The store: replicas, their HTTP interface, clusters of them."""

__version__ = "0.1.0"
