"""Local steps traced and written as C."""
