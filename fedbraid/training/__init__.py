"""Training a federation: the simulation, its round loop, the run directory and evaluation."""
