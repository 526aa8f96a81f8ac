"""The life of a run folder: job, record, evaluation, and the uses of a trained model."""
