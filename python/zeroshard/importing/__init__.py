"""Reads checkpoints of other programs without running anything in them."""
