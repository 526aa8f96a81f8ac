"""One file a mixing mechanism. A gin file's import line registers it; there is no central list."""
