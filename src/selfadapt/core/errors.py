"""What may go wrong for a reason that a user can mend or must know."""

from collections.abc import Sequence


class UserError(Exception):
    """A mistake in what the user gave: the message says what, where, and what to do. Exit code 2."""


class TrainingError(Exception):
    """Training cannot go on, through no fault in the program. Exit code 1."""


INTERRUPTED = 130  # the exit code of a process that a signal stopped


class Interrupted(BaseException):
    """A signal asked for a stop; what was begun can be resumed. No handler of errors may swallow it."""


class NonFinitePrediction(ValueError):
    """A prediction holds NaN or infinity; `samples` are the rows of the store that it was meant for."""

    def __init__(self, message: str, samples: Sequence[int]) -> None:
        super().__init__(message)
        self.samples = samples
