"""A run folder's life: its record, training, evaluation, and what a trained run is used for."""
