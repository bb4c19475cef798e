"""Archive: an export's files as one zip, the same bytes whenever it is made."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Final

_MOMENT: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_MODE: Final = 0o100644 << 16


def zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """A zip of files in a folder, in the order of their names."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(f"{folder}/{name}", _MOMENT)
            member.external_attr, member.create_system, member.compress_type = _MODE, 3, zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name])
    return held.getvalue()
