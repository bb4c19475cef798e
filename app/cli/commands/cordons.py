"""tilewise cordon and uncordon."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import render
from app.cli.options import Json, Url, settings
from app.cli.session import session
from tilewise import Cordon

DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="A device's id, such as cuda:0.")]


def cordon(
    device: DeviceName,
    reason: Annotated[str, typer.Option(help="What those are told whom the device refuses.")] = "by an operator's word",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Have a device refuse products and tunes until it is uncordoned, over restarts."""
    out, err = render.consoles()
    with session(settings(), url, "tilewise cordon", err) as here:
        found = here.cordon(device, reason)
    if as_json:
        render.print_json(found)
    else:
        out.print(f"{found.device} is cordoned by {found.by}: {found.reason}", soft_wrap=True)


def uncordon(device: DeviceName, url: Url = None, as_json: Json = False) -> None:
    """Have a device that is cordoned serve again."""
    out, err = render.consoles()
    with session(settings(), url, "tilewise uncordon", err) as here:
        found: Cordon = here.uncordon(device)
    if as_json:
        render.print_json(found)
    else:
        out.print(f"{found.device} is not cordoned.")
