"""counterproof_review: replication packets that an independent reviewer verifies and replays."""
