"""What a replication amounts to: one rule, pure and simulated."""
