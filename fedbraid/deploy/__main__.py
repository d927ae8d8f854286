"""The processes that `fedbraid serve` and `fedbraid join` start: python fedbraid/deploy/__main__.py ROLE …

Only those that train need torch. The rest know the package by its path alone, without what `import fedbraid` loads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


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
    here = Path(__file__).resolve().parent
    light = ModuleType("fedbraid")
    light.__path__ = [str(here.parent)]
    sys.modules["fedbraid"] = light
    sys.path.remove(str(here))  # the folder of a script, whose modules have names that others may use, too
    main()
