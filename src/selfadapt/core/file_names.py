"""File names, which some systems store as bytes that are not valid UTF-8."""

INVALID_FILE_NAME = "the file name is not valid UTF-8; rename the file"


def as_text(name: str) -> str:
    """Return the name as printable UTF-8, with invalid bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()
