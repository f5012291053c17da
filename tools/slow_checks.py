"""The checks that take minutes of the processor and whose answer can wait: the types, and with
`--page` what the page has besides its tests in Chromium. Run by the Makefile beside other work.

Their priority is low: tests that wait for processes and sockets leave them a third of two cores,
and are not slowed down by them. They are a process group, which a `kill` of its number ends.
"""

import os
import subprocess
import sys
from pathlib import Path

NICENESS = 10
# Objects of a type checker live long. With the default of 16 MB they are copied again and again:
# the types then take a tenth more.
NODE_OPTIONS = "--max-semi-space-size=64"


def main() -> None:
    os.setpgid(0, 0)
    os.nice(NICENESS)
    programs = Path(sys.executable).parent
    checks = [[str(programs / "pyright"), "--warnings"]]
    if "--page" in sys.argv[1:]:
        checks.append([sys.executable, "-m", "tools.page_tests", "--without-browser"])
    env = {**os.environ, "NODE_OPTIONS": NODE_OPTIONS}
    codes = [subprocess.run(check, check=False, env=env).returncode for check in checks]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
