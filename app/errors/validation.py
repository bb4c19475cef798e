"""What is wrong with a value that a model refused, in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_SHOWN: Final = 60  # characters of a refused value that a sentence shows

Context = Mapping[str, Any]

_FORMS: Final = {
    "^[ -~]{1,200}$": "1 to 200 printable characters",
    "^[A-Za-z0-9_-]{1,1000}$": "the `next` of the page before",
    r"^[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){1,2}$": "rows x columns such as 256x128, or 8x256x128 of a batch",
}

# By the validator's own names of what is wrong.
_SENTENCES: Final[Mapping[str, Callable[[Context], str]]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is not known here",
    "greater_than_equal": lambda told: f"must be at least {told['ge']}",
    "greater_than": lambda told: f"must be more than {told['gt']}",
    "less_than_equal": lambda told: f"must be at most {told['le']}",
    "less_than": lambda told: f"must be less than {told['lt']}",
    "int_type": lambda _: "must be an integer",
    "int_parsing": lambda _: "must be an integer",
    "int_parsing_size": lambda _: "must be an integer of usual size",
    "int_from_float": lambda _: "must be an integer",
    "float_type": lambda _: "must be a number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "bool_type": lambda _: "must be true or false",
    "bool_parsing": lambda _: "must be true or false",
    "string_type": lambda _: "must be text",
    "string_pattern_mismatch": lambda told: (
        f"must be {_FORMS.get(told['pattern'], 'text of the form ' + told['pattern'])}"
    ),
    "string_too_long": lambda told: f"must be text of at most {told['max_length']} characters",
    "literal_error": lambda told: f"must be {told['expected']}".replace("'", ""),
    "enum": lambda told: f"must be {told['expected']}".replace("'", ""),
    "list_type": lambda _: "must be a list",
    "tuple_type": lambda _: "must be a list",
    "too_short": lambda told: f"must have at least {told['min_length']} {_members(told['min_length'])}",
    "too_long": lambda told: f"must have at most {told['max_length']} {_members(told['max_length'])}",
    "dict_type": lambda _: "must be an object",
    "model_type": lambda _: "must be an object",
    "model_attributes_type": lambda _: "must be an object",
    "value_error": lambda told: f"is not right: {told['error']}",
}


def sentence(error: Mapping[str, Any], name: str) -> str:
    """What is wrong with the value that is called `name`, from one entry of pydantic's list of errors."""
    known = _SENTENCES.get(str(error.get("type")))
    message = known(error.get("ctx") or {}) if known else f"is not right: {error['msg']}"
    value = error.get("input")
    is_shown = isinstance(value, str | int | float | bool) and error.get("type") not in {
        "extra_forbidden",
        "value_error",
    }
    shown = f", got {repr(value)[:_SHOWN]}" if is_shown else ""
    return f"{name} {message}{shown}"


def _members(count: int) -> str:
    return "member" if count == 1 else "members"
