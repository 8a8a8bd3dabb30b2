"""Names of files, which on some systems are bytes that need not be text."""

NO_TEXT = "its name holds signs that are no text; rename it"


def as_text(name: str) -> str:
    """The name as it can be written down: bytes that are no text are spelled out, and all else stays as it is."""
    return name.encode("utf-8", "backslashreplace").decode()
