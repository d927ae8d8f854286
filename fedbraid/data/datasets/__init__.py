"""The data sets that come as files."""
