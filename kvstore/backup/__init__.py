"""Backups of a whole cluster: taken at one point of its order while it serves, checked, and made a cluster again."""
