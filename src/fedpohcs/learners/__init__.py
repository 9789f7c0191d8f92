"""Local learning algorithms, one per file, and the parts they share."""
