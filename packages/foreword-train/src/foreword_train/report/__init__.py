"""Report on a training: metrics, model card, plots."""
