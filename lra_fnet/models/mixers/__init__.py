"""One file per mixing mechanism. A gin file's import registers it; there is no central list."""
