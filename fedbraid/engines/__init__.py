"""Engines train the clients of a round."""
