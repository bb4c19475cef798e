"""Files that are cut, changed and hostile are read or refused at a line and column, and nothing else happens."""

from __future__ import annotations

from benchmarks.interchange.mutated import cases, outcome


def test_a_mutated_file_is_read_or_refused_at_its_place() -> None:
    found = {outcome(name, data) for name, data in cases(400, seed=7)}
    assert found == {"read", "refused"}
