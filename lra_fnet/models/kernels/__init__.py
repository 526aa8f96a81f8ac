"""What mixers share: tiles, scans and convolutions, and which form is fastest here."""
