"""JSON Schemas (draft 2020-12) of every file of a packet and of a review, for readers that are not this program."""
