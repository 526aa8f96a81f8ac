"""What writes this repository's own documents: `python -m tools.documents [name ...]`.

Every document, or group of them, is a module with a function `write`.
"""
