"""One frozen Settings, read from TILEWISE_* by main, cli and migrations only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    max_body_bytes: int = Field(default=2**30, ge=1, description="A larger request body is answered 413.")
    slab_bytes: int = Field(default=2**31, ge=2**12, description="Host memory for operands and results, all requests.")
    queue: int = Field(default=256, ge=1, description="Products that may wait at once; more are answered 503.")
    jobs: int = Field(default=256, ge=1, description="Tune jobs that may wait at once; more are answered 503.")
    result_ttl: int = Field(
        default=3600, ge=0, description="Seconds that the result of an asynchronous product is kept."
    )
    vendor: Literal["off", "serve"] = Field(
        default="off", description="serve: products may come from the vendor's library where it is faster."
    )
    idle_tuning: Literal["off", "on"] = Field(
        default="off", description="on: an idle device tunes the shapes that were asked for most and not tuned."
    )
    url: str | None = Field(default=None, description="A running service: the command line then speaks HTTP to it.")
    log_level: str = Field(default="info", description="debug, info, warning or error.")

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'tilewise.db'}"

    @property
    def cache(self) -> Path:
        """The folder of compiled kernels."""
        return self.cache_dir or self.data_dir / "cache"
