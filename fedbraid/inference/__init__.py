"""A trained model on new data."""
