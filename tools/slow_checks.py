"""The checks that take minutes of the processor and whose answer can wait: the types, and with
`--page` what the page has besides its tests in Chromium. Run by the Makefile beside other work.

Their priority is low: they take what tests leave that wait for processes and sockets.
They are a process group, which a `kill` of its number ends.
"""

import os
import subprocess
import sys
from pathlib import Path

NICENESS = 10
# Objects of a type checker live long, and a small young generation copies them again and again.
# Measured once each: pyright took 66 s of the processor, not 70; tsc and eslint gained nothing.
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
