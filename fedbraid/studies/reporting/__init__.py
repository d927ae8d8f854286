"""From a table's results to what people read of them: numbers beside the paper's, notes, pictures, pages."""
