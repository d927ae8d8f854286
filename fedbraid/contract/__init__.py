"""The contract that every strand keeps, as a public test suite."""
