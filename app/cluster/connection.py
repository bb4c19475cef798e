"""NodeConnection: the actor of one node as the service has it: placed, heard each second, given up, placed again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.cluster import staging
from app.cluster.messages import NodeDescription, NodeSettings, Role
from app.cluster.node import NodeActor, versions
from app.devices.process import GLANCE
from app.devices.slab import Slab
from app.errors import ChildDied, Closing, NoDevice

_LOG: Final = logging.getLogger(__name__)
_ENDING: Final = 5.0  # seconds that the end waits for what is under way
_LOOK: Final = 1.0  # seconds between two words to a node
_OPENING: Final = 180.0  # seconds that a node may take to open its devices
_THREADS: Final = {"calls": 64, "control": 4}  # of an actor: a long call does not keep a word from being heard


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as Ray tells of it; its name is the same when it comes back, its number is not."""

    name: str
    number: str
    address: str
    gpus: float


class NodeConnection:
    """A node's actor and what it said last. `fence` counts the actors: what an earlier one answers is never heard.

    A node that is silent for `settings.patience` seconds, or dies, is lost: it makes no calls until a node of its name
    has the same devices again.
    """

    def __init__(
        self, node: ClusterNode, settings: NodeSettings, slab: Slab, find: Callable[[str], ClusterNode | None]
    ) -> None:
        self.node, self._settings, self._slab, self._find = node, settings, slab, find
        self.fence = 0
        self.lost: str | None = "it was not opened yet"
        self.troubles: dict[tuple[str, Role], str | None] = {}
        self.memory: memoryview | None = None  # the node's slab, where it is on this host
        self._actor: Any = None
        self._devices: list[tuple[str, ...]] = []
        self._others = ""  # the number of a node of this name with other devices
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._watch: threading.Thread | None = None
        self._hearing, self._ended = 0, threading.Condition()

    def open(self) -> NodeDescription:
        """Place the actor and have it open the node's devices; raises NoDevice with the reason if it does not."""
        found = self._placed()
        self._devices = _identities(found)
        self.lost = None
        self._watch = threading.Thread(target=self._watching, name=f"node {self.node.name}", daemon=True)
        self._watch.start()
        return found

    @property
    def is_closed(self) -> bool:
        """Whether the service ends."""
        return self._closing.is_set()

    def ask(self, method: str, *arguments: Any, control: bool = False) -> Any:
        """Have the actor begin a method, whose reference this is; raises ChildDied if it is lost, or Closing."""
        actor = self._actor
        if self.is_closed:
            raise Closing(f"{self.node.name} is closed")
        if actor is None:
            raise self._died()
        group = "control" if control else "calls"
        return getattr(actor, method).options(concurrency_group=group).remote(*arguments)

    def hear(self, reference: Any, fence: int, look: Callable[[], None] = lambda: None) -> Any:
        """Wait for a method's value, and `look` meanwhile; raises ChildDied if the node was lost, and what `look` does.

        Raises Closing at the end. A RayTaskError that it raises is a fault of ours.
        """
        while True:
            try:
                return self._glanced(reference)
            except RayTaskError:
                raise
            except GetTimeoutError:
                look()
            except RayError as error:
                self.lose(fence, type(error).__name__)
            if self.lost is not None or self.fence != fence:
                raise self._died()

    def _died(self) -> ChildDied:
        reason = self.lost or "it was replaced"
        return ChildDied(f"node {self.node.name} is lost: {reason}", outside=True, stage="call")

    def _glanced(self, reference: Any) -> Any:
        """A value, if it comes within a quarter of a second; raises GetTimeoutError, Closing, RayError.

        None of these may be under way when this process leaves the cluster.
        """
        with self._ended:
            if self.is_closed:
                raise Closing(f"{self.node.name} is closed")
            self._hearing += 1
        try:
            return ray.get(reference, timeout=GLANCE)
        finally:
            with self._ended:
                self._hearing -= 1
                self._ended.notify_all()

    def _within(self, seconds: float, reference: Any) -> Any:
        """A value, if it comes in time; raises as `_glanced`."""
        until = monotonic() + seconds
        while True:
            try:
                return self._glanced(reference)
            except GetTimeoutError:
                if monotonic() > until:
                    raise

    def lose(self, fence: int, reason: str) -> None:
        """Hear nothing more of the actor of a fence."""
        with self._lock:
            if self.fence != fence or self.lost is not None or self.is_closed:
                return
            self.lost = reason
            actor, self._actor = self._actor, None
        _LOG.warning("node %s is lost at fence %d: %s", self.node.name, fence, reason)
        _kill(actor)

    def close(self) -> None:
        """End the actor and with it the node's processes."""
        with self._ended:
            self._closing.set()
            self._ended.wait_for(lambda: not self._hearing, _ENDING)
        if self._watch is not None:
            self._watch.join(_ENDING)
        if self._actor is not None:
            _kill(self._actor)

    def _placed(self) -> NodeDescription:
        actor = _actor(self.node, self._settings)
        try:
            found = self._described(actor)
        except (RayError, NoDevice, Closing) as error:
            _kill(actor)
            if isinstance(error, NoDevice | Closing):
                raise
            raise NoDevice(f"{self.node.name}: {_told(error)}") from error
        memory = None if found.slab is None or not found.reads_slab else staging.opened(found.slab)
        with self._lock:
            self.memory = None if memory is None else memoryview(memory)
            self._actor, self.fence, self.troubles = actor, self.fence + 1, {}
        return found

    def _described(self, actor: Any) -> NodeDescription:
        theirs = tuple(self._got(actor.versions.remote(), _OPENING))
        if theirs != versions():
            raise NoDevice(f"{self.node.name}: it has {', '.join(theirs)}, not {', '.join(versions())}")
        shared, region = staging.announced(self._slab)
        try:
            found: NodeDescription = self._got(actor.open.remote(self._settings, shared), _OPENING)
        finally:
            self._slab.release(region)
        if found.slab is not None and staging.opened(found.slab) is None:
            found = replace(found, reads_slab=False)
            self._got(actor.send_results.remote(), _OPENING)
        return found

    def _got(self, reference: Any, seconds: float) -> Any:
        """A value that the service's end does not wait for, nor for a node that is gone."""
        until = monotonic() + seconds
        while monotonic() < until and not self.is_closed and self._find(self.node.name) == self.node:
            with suppress(GetTimeoutError):
                return self._within(_LOOK, reference)
        raise NoDevice(f"{self.node.name}: no actor opened its devices: it is gone, or its GPUs are other work's")

    def _watching(self) -> None:
        while not self._closing.wait(_LOOK):
            if self.lost is None:
                self._ping()
            else:
                self._return()

    def _ping(self) -> None:
        fence = self.fence
        try:
            self.troubles = self._within(self._settings.patience, self.ask("ping", control=True))
        except (Closing, ChildDied):
            return
        except GetTimeoutError:
            self.lose(fence, f"it said nothing for {self._settings.patience:g} s")
        except RayError as error:
            self.lose(fence, type(error).__name__)

    def _return(self) -> None:
        """Place an actor where a node of this name lives again, if it has the same devices."""
        node = self._find(self.node.name)
        if node is None or node.number == self._others:
            return
        self.node = node
        try:
            found = self._placed()
        except Closing:
            return
        except NoDevice as error:
            _LOG.info("node %s stays lost: %s", node.name, error.message)
            return
        if _identities(found) != self._devices:
            _kill(self._actor)
            self._others = node.number
            self.lost = "it came back with other devices or another driver: they are the next start's"
            return
        _LOG.warning("node %s is back at fence %d", node.name, self.fence)
        self.lost = None


def _actor(node: ClusterNode, settings: NodeSettings) -> Any:
    """The actor of a node, which takes all of its GPUs, so that Ray gives them to nobody else."""
    wants_gpus = "cuda" in settings.devices
    return (
        ray.remote(concurrency_groups=_THREADS)(NodeActor)
        .options(
            num_cpus=0,
            num_gpus=node.gpus if wants_gpus else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.number, soft=False),
        )
        .remote()
    )


def _identities(found: NodeDescription) -> list[tuple[str, ...]]:
    """What must be the same for timings and plans to hold; limits that were measured differ a little each time."""
    return [(one.id, one.model, one.environment, one.uuid) for one, _ in found.devices]


def _kill(actor: Any) -> None:
    ray.kill(actor, no_restart=True)


def _told(error: RayError) -> str:
    cause = getattr(error, "cause", None)
    return str(cause if cause is not None else error).strip().rpartition("\n")[2]
