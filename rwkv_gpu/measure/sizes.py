"""Numbers of bytes and parameters as text."""


def sized(nbytes: float) -> str:
    """Formats bytes, such as 1.5 MiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def counted(parameters: int) -> str:
    """Formats a number of parameters, such as 2.95 B or 83.6 M."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters:,}"
