"""How far a candidate configuration's predictions stray from a reference's, token for token of the same text."""
