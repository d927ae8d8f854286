"""The parts of benchmarks/peers.py: workloads, contenders, and one worker for each kind of contender.

A worker is run by the interpreter of its own environment, so `federation`, `networks`, `wire` and the workers need
torch and numpy alone, and whatever package the worker is about.
"""
