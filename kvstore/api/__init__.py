"""What server and clients share: transactions and their results, their JSON, and which shard owns a key. Pure."""
