"""One file per protocol. A file's presence enrols it (`multicast.registry`). Protocols never import one another."""
