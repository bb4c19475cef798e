"""What columns hold that SQL has no type for: moments, text of compilers and drivers, samples."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, DateTime, Dialect, Text, TypeDecorator


class Moment(TypeDecorator[datetime]):
    """An aware datetime, kept and given back in UTC; raises ValueError for a naive one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """In UTC, as text or as a timestamp with time zone."""
        del dialect
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value} names no moment: it has no time zone")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware: SQLite's text says no zone, PostgreSQL's session may have another."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class Prose(TypeDecorator[str]):
    """Text from compilers and drivers, with replacement characters for those that UTF-8 or PostgreSQL lack."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Without NUL and lone surrogates."""
        del dialect
        return value and value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


class Samples(TypeDecorator[tuple[float, ...]]):
    """Samples in seconds, kept as a JSON list of whole nanoseconds."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: tuple[float, ...] | None, dialect: Dialect) -> list[int]:
        """As whole nanoseconds."""
        del dialect
        return [round(seconds * 1e9) for seconds in value or ()]

    def process_result_value(self, value: list[int] | None, dialect: Dialect) -> tuple[float, ...]:
        """In seconds."""
        del dialect
        return tuple(nanoseconds / 1e9 for nanoseconds in value or ())
