"""Simulation on a Ray cluster."""
