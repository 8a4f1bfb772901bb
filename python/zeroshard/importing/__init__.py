"""Checkpoints of others, read without running anything that is in them."""
