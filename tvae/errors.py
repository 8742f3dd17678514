"""Errors that end a command with a line instead of a traceback."""

from __future__ import annotations

from typing import Any


class Failure(Exception):
    """A foreseen problem: a line for each mistake, and the exit code of the command."""

    exit_code = 1
    is_shared = False  # all ranks raise it, so that only the leader has to tell

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.problems, self.__dict__


class UserError(Failure, ValueError):
    """A mistake in what the user gave."""

    exit_code = 2


class TrainingFailed(Failure):
    """Training diverged. All ranks see the same sums, so all of them raise it."""

    is_shared = True


def refuse(is_wrong: bool, problem: str) -> None:
    """Raise `UserError` with this line if `is_wrong`."""
    if is_wrong:
        raise UserError(problem)
