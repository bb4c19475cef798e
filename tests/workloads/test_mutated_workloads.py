"""Workload files that are cut, changed and hostile are read or refused, and nothing else happens."""

from __future__ import annotations

from benchmarks.workloads.mutated import cases, outcome


def test_a_mutated_file_is_read_or_refused() -> None:
    found = {outcome(said, data) for _, said, data in cases(160, seed=7)}
    assert found == {"read", "refused"}
