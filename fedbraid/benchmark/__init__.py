"""Speed on this machine, beside the usual loop of federated averaging and beside a single model.

All contenders take the same local steps. They are timed in turn within one run, each in a process of its own (the
engines share one), and medians are compared.
"""

from fedbraid.benchmark.measure import Row, measure
from fedbraid.benchmark.work import Workload, images, works

__all__ = ["Row", "Workload", "images", "measure", "works"]
