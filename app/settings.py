"""One frozen Settings, read from TILEWISE_* by main, cli and migrations only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _home() -> Path:
    return Path.home() / ".local" / "share" / "tilewise"


class Settings(BaseSettings):
    """What a host's owner may choose. Each member is the environment variable TILEWISE_ + its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="TILEWISE_", frozen=True, extra="ignore")

    data_dir: Path = Field(default_factory=_home, description="Where the database and the caches live.")
    database_url: str | None = Field(
        default=None, description="SQLite (sqlite:///...) or PostgreSQL (postgresql://...)."
    )
    cache_dir: Path | None = Field(default=None, description="Compiled kernels; by default cache/ under the data.")
    devices: str = Field(
        default="auto", description="auto, none, or ids and platforms such as cuda or cuda:0,opencl:0."
    )
    ray: str = Field(
        default="off",
        description="auto, or the address of a Ray cluster: then TILEWISE_DEVICES are those of its nodes, auto their "
        "GPUs; needs tilewise[cluster].",
    )
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] | Literal["off"] = Field(
        default=8000, description="The port to listen on; 0 takes a free one, off none: then there is the socket alone."
    )
    uds: Path | None = Field(default=None, description="A Unix socket to listen on beside the port, for its user only.")
    tls_certificate: Path | None = Field(default=None, description="PEM file of a certificate chain: then HTTPS only.")
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's key, where it is another.")
    idle_timeout: float = Field(
        default=60.0, gt=0, description="Seconds without a byte before a connection is closed, with 408 if it sends."
    )
    transfer_timeout: float = Field(default=3600.0, gt=0, description="Seconds that one body or answer may take.")
    min_transfer_rate: int = Field(
        default=2**14, ge=0, description="Bytes a second that a client must move, after its first ten seconds."
    )
    transfer_threads: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Threads that move large bodies and answers between sockets and memory, TLS apart; 0: the event "
        "loop does. By default one for each CPU, at most 32.",
    )
    slab_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that moving an operand or a result may take, at its rate, of the memory that it holds; a "
        "slower transfer is ended where others find no room.",
    )
    auth: Literal["none", "keys", "mtls"] = Field(
        default="none", description="Who is let in: everybody, bearers of API keys, or of client certificates too."
    )
    insecure: Literal["no", "yes"] = Field(
        default="no", description="yes: TILEWISE_AUTH=none is allowed beyond loopback, where anybody may use the GPU."
    )
    admin_key_file: Path | None = Field(
        default=None, description="A file with a key that may do everything, such as a Docker secret."
    )
    hosts: str = Field(
        default="", description="Names beside the machine's own that the Host header may have, with commas; * for any."
    )
    tls_clients: Path | None = Field(
        default=None, description="PEM file of the CAs of client certificates, with TILEWISE_AUTH=mtls."
    )
    connections: int | None = Field(
        default=None,
        ge=1,
        description="Connections at once; by default half of the descriptors that a process may have.",
    )
    connections_per_address: int | None = Field(
        default=None, ge=1, description="Connections from one address; by default half of all. A proxy is one address."
    )
    drain_seconds: float = Field(
        default=20.0,
        ge=0,
        description="Seconds, when it is told to stop, for what is in hand; a second signal ends it.",
    )
    max_body_bytes: int = Field(default=2**30, ge=1, description="A larger request body is answered 413.")
    slab_bytes: int = Field(
        default=2**31, ge=2**12, description="Host memory for operands and results; CUDA locks all of it."
    )
    resident_bytes: int = Field(
        default=2**30, ge=0, description="Bytes of the slab for matrices that one caller keeps; more is answered 507."
    )
    resident_count: int = Field(default=1024, ge=0, description="Matrices that one caller keeps; more is answered 507.")
    resident_device_bytes: int = Field(
        default=2**30, ge=0, description="Memory of each device for copies of them; the least recently used go first."
    )
    device_bytes: int | None = Field(
        default=None,
        ge=2**20,
        description="Memory of each device for one product; larger ones are made in tiles. By default all of it.",
    )
    operand_dir: Path | None = Field(
        default=None,
        description="A folder of .npy files that whoever may multiply may name as operands; by default there is none.",
    )
    queue: int = Field(default=256, ge=1, description="Products that may wait at once; more are answered 503.")
    jobs: int = Field(default=256, ge=1, description="Tune jobs that may wait at once; more are answered 503.")
    lease: float = Field(
        default=10.0,
        ge=1,
        description="Seconds after which another service on the same PostgreSQL takes up a silent one's jobs.",
    )
    max_client_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Fraction of the queue and the slab that one client may hold; beyond: 429. By default 0.5, "
        "or all of it with TILEWISE_AUTH=none, where everybody is one client.",
    )
    max_batch: int = Field(
        default=64, ge=1, description="Maximum size of a dynamic batch of small products; 1 disables batching."
    )
    result_ttl: int = Field(
        default=3600, ge=0, description="Seconds that the result of an asynchronous product is kept."
    )
    result_bytes: int = Field(
        default=2**34, ge=1, description="Bytes of the disk's blocks for such results; beyond it the oldest go first."
    )
    result_files: int = Field(default=2**16, ge=1, description="Files of such results; beyond it the oldest go first.")
    jobs_kept: int = Field(
        default=100_000, ge=0, description="Jobs that have ended that are kept in the database; the oldest go first."
    )
    jobs_days: float | None = Field(default=None, gt=0, description="Days after which such a job goes in any case.")
    trials_kept: int = Field(
        default=1_000_000, ge=0, description="Trials that are kept; the oldest to which no best refers go first."
    )
    trials_days: float | None = Field(default=None, gt=0, description="Days after which such a trial goes in any case.")
    misses_kept: int = Field(default=10_000, ge=0, description="Misses that are kept; the rarest go first.")
    misses_days: float | None = Field(default=None, gt=0, description="Days after which a miss goes in any case.")
    import_bytes: int = Field(
        default=2**26, ge=0, description="Bytes that one caller's imports of results may take; more is answered 507."
    )
    import_days: float | None = Field(default=90, gt=0, description="Days after which an import expires.")
    idempotency_ttl: int = Field(
        default=86400,
        ge=0,
        description="Seconds of running that the first answer to an Idempotency-Key is kept and replayed.",
    )
    vendor: Literal["off", "serve"] = Field(
        default="off", description="serve: products may come from the vendor's library where it is faster."
    )
    idle_tuning: Literal["off", "on"] = Field(
        default="off", description="on: an idle device tunes the shapes that were asked for most and not tuned."
    )
    shared_memory: Literal["off", "on"] = Field(
        default="off", description="on: callers on this host may name their shared memory under /v2 in place of bodies."
    )
    sandbox: Literal["on", "off"] = Field(
        default="on", description="off: the devices' processes are not confined where the system has the means."
    )
    url: str | None = Field(default=None, description="A running service: the command line then speaks HTTP to it.")
    otel: Literal["off", "on"] = Field(
        default="off", description="on: traces and metrics are sent by OTLP, where OTEL_* say; needs tilewise[otel]."
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")
    log_format: Literal["text", "json"] = Field(
        default="text", description="The log on standard error: lines for people, or one JSON object a line."
    )

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'tilewise.db'}"

    @property
    def share(self) -> float:
        """The fraction of the queue and the slab that one client may hold."""
        if self.max_client_share is not None:
            return self.max_client_share
        return 1.0 if self.auth == "none" else 0.5

    @property
    def secret(self) -> Path:
        """The file of the secret that hashes of keys are keyed with."""
        return self.data_dir / "secret"

    @property
    def cache(self) -> Path:
        """The folder of compiled kernels."""
        return self.cache_dir or self.data_dir / "cache"
