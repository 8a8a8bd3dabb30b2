"""Errors with a defined exit code, for problems that a user can fix or must know about."""

from collections.abc import Mapping, Sequence


class UserError(Exception):
    """Invalid input from the user. The message says what is wrong, where, and what to do. Exit code 2."""


def check_least(numbers: Mapping[str, int | None], least: int = 1) -> None:
    """Raise a UserError for the first option whose number, if it was given, is smaller than this."""
    for option, number in numbers.items():
        if number is not None and number < least:
            raise UserError(f"{option} {number} must be at least {least}")


class TrainingError(Exception):
    """Training cannot continue, for a reason outside the program. Exit code 1."""


INTERRUPTED = 130  # exit code of a process that was stopped by a signal


class Interrupted(BaseException):
    """A signal requested a stop; the run can be resumed. Derives from BaseException so that no handler swallows it."""


class NonFinitePrediction(ValueError):
    """A prediction contains NaN or infinity; `samples` are the affected rows of the target store."""

    def __init__(self, message: str, samples: Sequence[int]) -> None:
        super().__init__(message)
        self.samples = samples
