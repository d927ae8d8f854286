"""Configuration of a run: schema, TOML, options, sweeps, and settings without effect."""
