"""Differential privacy: accounting and budgets."""
