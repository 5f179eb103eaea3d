"""The simulator's commands: every module here is one, named like the module, and is enrolled by being there.

A module has a function `command`, whose parameters are typer options (`multicast.simulation.cli` has those that several
commands take) and whose docstring is the help text. Bad usage raises `cli.BadUsage`; a bad result, `typer.Exit(1)`.
Import what is heavy inside the function: all modules here are imported to print the help.
"""
