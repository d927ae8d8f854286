"""From finished rounds to what people read: summaries, the comparison table, pictures, one HTML file."""
