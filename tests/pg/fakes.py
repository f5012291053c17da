"""Fakes of PostgreSQL's programs: shell scripts in their own bin directory."""

from pathlib import Path

from chatd.pg.binaries import PROGRAMS

STALLS = """
echo 18 > "$dir/PG_VERSION"
echo $$ > "$dir/pid.new" && mv "$dir/pid.new" "$dir/pid"
exec sleep 600
"""
DISK_IS_FULL = """
echo 'creating subdirectories ... initdb: error: could not create directory' >&2
echo "\\"$dir/base\\": No space left on device" >&2
exit 1
"""


def programs(bin_dir: Path, version: str = "18.6", initdb: str = "exit 1") -> Path:
    """Programs that print this version; initdb runs this script with its directory in `$dir`."""
    bin_dir.mkdir(parents=True)
    for name in PROGRAMS:
        body = initdb if name == "initdb" else "exit 1"
        script = f"""#!/bin/sh
for word in "$@"; do
    case "$word" in
        --version) echo "{name} (PostgreSQL) {version}"; exit 0 ;;
        --pgdata=*) dir="${{word#--pgdata=}}" ;;
    esac
done
{body}
"""
        (bin_dir / name).write_text(script)
        (bin_dir / name).chmod(0o755)
    return bin_dir
