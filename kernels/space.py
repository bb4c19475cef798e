"""Spaces: the configs of a kernel, as parameters with values, and named rules that refuse some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice, product
from math import prod
from operator import itemgetter
from typing import TypeAlias

from kernels.device import Device
from kernels.problem import Problem

Item: TypeAlias = tuple[str, int]
Items: TypeAlias = tuple[Item, ...]
# Of a config that is being built: the numbers of its items among the space's, which are compared sooner than these.
Prefix: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Config(Mapping[str, int]):
    """One point of a space: a value for each parameter, in the space's order. Hashable; equal by items."""

    items_: Items
    # The same by name, made when first looked up: most configs of a space never are.
    _values: dict[str, int] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, values: Mapping[str, int]) -> Config:
        """Take the parameters in the order given."""
        return cls(tuple(values.items()))

    def __getitem__(self, name: str) -> int:
        values = self._values
        if values is None:
            values = dict(self.items_)
            object.__setattr__(self, "_values", values)
        return values[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.items_)


Rule = Callable[[Config, Problem, Device], bool]


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters with their values, and rules: each is named by its reason and holds for a legal config.

    `reads` are the parameters of a rule, if not all: `legal` applies it as soon as they are chosen. It chooses all
    parameters in `order`, which is quick if those refused soonest come first; the space's own, if none is given.
    """

    parameters: Mapping[str, tuple[int, ...]]
    rules: Mapping[str, Rule]
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Config]:
        names = tuple(self.parameters)
        return (Config(tuple(zip(names, values, strict=True))) for values in product(*self.parameters.values()))

    def config(self, values: Mapping[str, int]) -> Config:
        """Make a config of this space; raises ValueError if a parameter is missing, unknown or has no such value."""
        if set(values) != set(self.parameters):
            raise ValueError(f"the parameters are {', '.join(self.parameters)}, got {', '.join(values)}")
        for name, allowed in self.parameters.items():
            if values[name] not in allowed:
                raise ValueError(f"{name} is one of {', '.join(map(str, allowed))}, got {values[name]}")
        return Config(tuple((name, values[name]) for name in self.parameters))

    def refusal(self, config: Config, problem: Problem, device: Device) -> str | None:
        """The name of the first rule that refuses this config here, or None if it is legal."""
        return next((name for name, holds in self.rules.items() if not holds(config, problem, device)), None)

    def first_legal(self, problem: Problem, device: Device) -> Config:
        """The first legal config; the space's first where there is none, which `launch` then refuses by its rule."""
        return next(iter(self.legal(problem, device)), next(iter(self)))

    def first_unlike(
        self, configs: Iterable[Config], names: Sequence[str], most: int, problem: Problem, device: Device
    ) -> tuple[Config, ...]:
        """The first legal ones of `configs`, no two of which agree in all of `names`, and no more than `most`."""
        found: dict[tuple[int, ...], Config] = {}
        for config in configs:
            values = tuple(config[name] for name in names)
            if values not in found and self.refusal(config, problem, device) is None:
                found[values] = config
                if len(found) == most:
                    break
        return tuple(found.values())

    def __len__(self) -> int:
        return prod(map(len, self.parameters.values()))

    def legal(self, problem: Problem, device: Device) -> list[Config]:
        """Every config that no rule refuses, in the space's order."""
        return self.sifted(problem, device)[0]

    def sifted(self, problem: Problem, device: Device) -> tuple[list[Config], dict[str, int]]:
        """The legal configs in the space's order, and the number that each rule refuses.

        Configs are built a parameter at a time, in `order`, and a refused prefix is not extended: it counts for the
        rule that was evaluated first. Rules apply at the last parameter that they read; of several, the one with the
        fewest combinations of values to evaluate is first. A rule is evaluated once for all configs that agree in what
        it reads, and a prefix is extended only once all rules of a parameter have said by which of its values.
        """
        found, chosen, waiting = list[Prefix]([()]), list[str](), dict(self.rules)
        items = [(name, value) for name, values in self.parameters.items() for value in values]
        numbers, refused, endings = iter(range(len(items))), dict.fromkeys(self.rules, 0), len(self)
        of_name = {name: tuple(islice(numbers, len(values))) for name, values in self.parameters.items()}
        for name in self.order or self.parameters:
            following = of_name[name]
            endings //= len(following)
            ready = [one for one in waiting if {*chosen, name}.issuperset(self.reads.get(one, self.parameters))]
            # Of each prefix, the values that no rule has refused yet: bit i is the i-th.
            left = [(1 << len(following)) - 1] * len(found)
            for reason in sorted(ready, key=self._combinations):
                before = sum(map(int.bit_count, left))
                parts = _parts(found, self._places(reason, chosen))
                left = _left(parts, left, partial(_legal, waiting.pop(reason), problem, device, items, following))
                refused[reason] = (before - sum(map(int.bit_count, left))) * endings
                found, left = list(compress(found, left)), list(filter(None, left))
            found = _extended(found, left, following)
            chosen.append(name)
        if self.order:
            found = sorted(map(itemgetter(*map(chosen.index, self.parameters)), found))
        return [Config(tuple(map(items.__getitem__, prefix))) for prefix in found], refused

    def _places(self, reason: str, chosen: Sequence[str]) -> list[int]:
        """Where in a prefix the parameters are that a rule reads."""
        read = self.reads.get(reason, chosen)
        return [place for place, name in enumerate(chosen) if name in read]

    def _combinations(self, reason: str) -> int:
        """The combinations of values of the parameters that a rule reads: its evaluations at most."""
        return prod(len(self.parameters[name]) for name in self.reads.get(reason, self.parameters))


def _legal(
    holds: Rule, problem: Problem, device: Device, items: Sequence[Item], following: Prefix, part: Prefix, values: int
) -> int:
    """Those of a parameter's values that a rule does not refuse after what else it reads."""
    read = tuple(map(items.__getitem__, part))
    asked = ((bit, items[number]) for bit, number in enumerate(following) if values >> bit & 1)
    return sum(1 << bit for bit, item in asked if holds(Config((*read, item)), problem, device))


def _left(parts: Sequence[Prefix], left: Sequence[int], legal: Callable[[Prefix, int], int]) -> list[int]:
    """The values left to each prefix by a rule, which is evaluated once for each part and value left to a prefix."""
    asked = dict[Prefix, int]()
    for part, values in zip(parts, left, strict=True):
        asked[part] = asked.get(part, 0) | values
    found = {part: legal(part, values) for part, values in asked.items()}
    return [values & found[part] for part, values in zip(parts, left, strict=True)]


def _extended(found: Sequence[Prefix], left: Sequence[int], following: Prefix) -> list[Prefix]:
    """Each prefix with each of the values left to it."""
    chosen = {values: [number for bit, number in enumerate(following) if values >> bit & 1] for values in set(left)}
    return [(*prefix, number) for prefix, values in zip(found, left, strict=True) for number in chosen[values]]


def _parts(found: Sequence[Prefix], places: Sequence[int]) -> list[Prefix]:
    """The items of each at these places."""
    if len(places) < 2:  # noqa: PLR2004 - what itemgetter gives of one place is no tuple
        return [(prefix[places[0]],) for prefix in found] if places else [()] * len(found)
    return list(map(itemgetter(*places), found))
