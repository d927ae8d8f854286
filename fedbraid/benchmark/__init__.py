"""How fast it is here, beside the usual way to write federated averaging and beside what a single model reaches.

All contenders take the same local steps. They are timed in turn within one run, each in a process of its own (the
engines share one), and medians are compared.
"""

from fedbraid.benchmark.measure import Row, measure
from fedbraid.benchmark.work import Work, images, works

__all__ = ["Row", "Work", "images", "measure", "works"]
