"""What writes this repository's own documents: `python -m tools.documents`."""
