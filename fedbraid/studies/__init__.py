"""Studies: the tables and figures of papers as recipes that are run, and reported beside the paper's own numbers."""
