"""Prints a report: terminal, Markdown, CSV, LaTeX, HTML."""
