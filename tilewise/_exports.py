"""ExportMethods: winners to take away."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from tilewise._requests import RequestMethods, members_of
from tilewise._sansio import Flow, Operation
from tilewise.arguments import ExportArguments
from tilewise.shapes import Problem, ShapeLike, sizes_of


class ExportMethods(RequestMethods):
    """Exports. Every method raises ClientError if the service refuses."""

    @Operation
    def take(
        self,
        problem: Problem | ShapeLike,
        target: str,
        *,
        device: str | None = None,
        arch: str | None = None,
        kernel: str | None = None,
        config: Mapping[str, int] | None = None,
    ) -> Flow[bytes]:
        """Give a problem's winner, or a shape's in float32, as files of a target such as "c": the bytes of a zip.

        With `kernel` and `config` that config instead of the winner; with `arch`, such as "sm_90", for a GPU that is
        not the service's.
        """
        if not isinstance(problem, Problem):
            sizes = sizes_of(problem, None, None, None)
            problem = Problem(sizes.m, sizes.n, sizes.k, sizes.batch)
        return (yield from self._exported(ExportArguments(problem, target, device, arch, kernel, config)))

    def _exported(self, arguments: ExportArguments) -> Flow[bytes]:
        query = {**members_of(arguments.problem), **arguments.query()}
        return (yield from self._get(f"/take/{quote(arguments.target, safe='')}", query)).body
