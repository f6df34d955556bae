"""Keys, signatures, seals and the ledger: what neither side can change unnoticed."""
