"""The core: strands, chains, the client step and the round, as pure functions."""
