"""Building blocks that protocols share. Pure; each has a naive oracle in the tests. Message tags here are 100 and
up."""
