"""Notices: what a transaction changed, told to every service as it commits (PostgreSQL's NOTIFY)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

CHANNEL: Final = "tilewise"
JOB, CANCEL, BEST, FAULT, API_KEY = "job", "cancel", "best", "fault", "api_key"
NOTICES: Final = "notices"  # in a session's info: what is to be told, where somebody listens
_SEND: Final = text("SELECT pg_notify(:channel, :payload)")


@dataclass(frozen=True, slots=True)
class Notice:
    """What service `origin` committed: of which kind, and of what."""

    origin: str
    kind: str
    subject: tuple[Any, ...] = ()


def note(session: Session, kind: str, *subject: Any) -> None:
    """Tell every service of a change once the transaction commits; nothing where no other service can be."""
    waiting = session.info.get(NOTICES)
    if waiting is not None:
        waiting[json.dumps([kind, *subject], sort_keys=True)] = None


def send(session: Session, origin: str) -> None:
    """Hand what was noted to the server, in the transaction itself: it delivers at the commit, or never."""
    for each in session.info.get(NOTICES) or ():
        payload = json.dumps([origin, *json.loads(each)])
        session.execute(_SEND, {"channel": CHANNEL, "payload": payload})


def received(payload: str) -> Notice:
    """The notice in a payload."""
    origin, kind, *subject = json.loads(payload)
    return Notice(origin, kind, tuple(subject))
