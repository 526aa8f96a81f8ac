"""Rows on disk and their sources; knows no class of a task."""
