"""The HTTP/1.1 server under uvicorn: a protocol of its own, given to `http=`, that knows bytes and no routes.

uvicorn's own protocol copies a body four times on its way to the application. Here a route decides on the headers,
lends a buffer, and the socket is read into that buffer; answers leave from the slab. Of uvicorn only the names that its
documentation has are used: it opens sockets, runs the event loop and the lifespan, and ends.
"""

from app.server.acceptor import Acceptor
from app.server.connection_limits import ConnectionLimits
from app.server.flow_control import TransferLimits
from app.server.http import AdmissionCheck, PendingAdmissions
from app.server.peer import PRINCIPAL, Authenticator, Peer
from app.server.protocol import BulkProtocol, protocol_factory
from app.server.request import EXTENSION
from app.server.systemd import SystemdNotifier
from app.server.tls import ReloadingTls, TlsFiles

__all__ = [
    "EXTENSION",
    "PRINCIPAL",
    "Acceptor",
    "AdmissionCheck",
    "Authenticator",
    "BulkProtocol",
    "ConnectionLimits",
    "Peer",
    "PendingAdmissions",
    "ReloadingTls",
    "SystemdNotifier",
    "TlsFiles",
    "TransferLimits",
    "protocol_factory",
]
