"""Words for durations and counts."""


def duration_text(seconds: float) -> str:
    """ "0.8 s", "41 s", "2 m 14 s", "1 h 5 m", "3 d"."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m" + (f" {whole % 60} s" if whole % 60 else "")
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes} m" if minutes else "")
    return f"{whole // 86400} d"


def elapsed_text(seconds: float) -> str:
    """Of what still goes on, in whole seconds: "4 s", "2 m 14 s"."""
    whole = int(max(0.0, seconds))
    return f"{whole} s" if whole < 10 else duration_text(whole)


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 file", "3 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
