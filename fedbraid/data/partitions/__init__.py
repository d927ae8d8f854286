"""Partitions: who holds which training samples."""
