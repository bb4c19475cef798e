"""The base of all tables: names of constraints, types of columns, and the column that numbers rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, BigInteger, Double, Integer, LargeBinary, MetaData, Text
from sqlalchemy.orm import DeclarativeBase

from app.store.column_types import Moment, Samples

_NAMES: Final = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself in INTEGER columns only


class Base(DeclarativeBase):
    """The base of all tables: names of constraints and types of columns."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {  # noqa: RUF012 -- SQLAlchemy reads it off the class, and nobody changes it
        str: Text,
        int: BigInteger,
        float: Double,
        datetime: Moment,
        dict[str, Any]: JSON(none_as_null=True),
        tuple[float, ...]: Samples,
        bytes: LargeBinary,
    }
