"""RO-Crate metadata of a packet, a review or a study: a view for catalogues and archives, never evidence itself."""
