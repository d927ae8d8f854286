"""Run one of the processes that `fedbraid serve` and `fedbraid join` start: `python -m fedbraid.deploy ROLE …`.

Only the processes that train load torch, because `import fedbraid` alone does not.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    from fedbraid.deploy import flower_programs
    from fedbraid.deploy.processes import end_with_the_pipe

    end_with_the_pipe()
    _, role, *arguments = sys.argv
    if role == "superlink":
        flower_programs.superlink(Path(arguments[0]), arguments[1:])
    else:
        getattr(flower_programs, role)(arguments)


if __name__ == "__main__":
    main()
