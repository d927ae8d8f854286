"""Readers of file formats: a path in, arrays out, one clear sentence where a file is not what it should be."""
