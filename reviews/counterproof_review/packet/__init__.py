"""The replication packet: one deterministic, closed-world zip from which a study can be run again."""
