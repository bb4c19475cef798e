"""The bulk path under uvicorn: heads go to its parser, a body of declared length straight to where its route wants it.

uvicorn copies a body four times on its way to the application. Here a route decides on the headers, lends a place, and
the socket is read into that place; answers leave from the slab. This leans on names that uvicorn keeps private:
tests/api/test_wire_names.py holds each of them against the installed version.
"""

from app.server.acceptor import Acceptor
from app.server.http import AdmissionCheck, PendingAdmissions
from app.server.protocol import BulkProtocol, protocol_factory
from app.server.request import EXTENSION
from app.server.systemd import SystemdNotifier
from app.server.transfer_limits import TransferLimits

__all__ = [
    "EXTENSION",
    "Acceptor",
    "AdmissionCheck",
    "BulkProtocol",
    "PendingAdmissions",
    "SystemdNotifier",
    "TransferLimits",
    "protocol_factory",
]
