"""Kernels of our own, for what libraries do slowly when every client has weights of its own."""
