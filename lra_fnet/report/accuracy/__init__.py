"""The accuracy tables: cells, rows, the lines below them, and the literature."""
