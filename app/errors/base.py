"""What every error of the project is."""

from __future__ import annotations

from typing import ClassVar


class TilewiseError(Exception):
    """Whatever Tilewise raises on purpose. `facts` are figures for the answer's body, such as a limit and a size."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[TilewiseError], message: str, facts: dict[str, object]) -> TilewiseError:
    return kind(message, **facts)
