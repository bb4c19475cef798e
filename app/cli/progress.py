"""Live progress of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn

from app.cli.drawing.charts import bars
from app.cli.render import conditions_text
from app.cli.session import Session
from tilewise import Client, Conditions, Event, Job, Problem
from tilewise.decoding import from_json

_NARROW: Final = 100  # columns below which the count of trials is left out, and words are cut
_WORDS: Final = 27  # characters of what the job does now, in a narrow terminal


def follow(here: Session | Client, job: Job, console: Console) -> Job:
    """Show the job's progress until its end, and give it as it then stands."""
    if job.ended:
        return job
    narrow = console.width < _NARROW
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12 if narrow else 24),
        TextColumn("{task.percentage:>3.0f} %"),
        *(() if narrow else (TextColumn("{task.fields[trials]}"),)),
        TextColumn("{task.fields[best]}"),
        TextColumn("{task.fields[left]}"),
    )
    fastest = FastestTrials()
    with _ProgressWithBars(fastest, *columns, console=console) as bar:
        task = bar.add_task(_cut("waiting for the device", narrow), total=1.0, trials="", best="", left="")
        for event in here.events(job.id):
            if event.name == "trial":
                fastest.take(event.data)
            _apply(bar, task, event, narrow)
    return here.job(job.id)


class FastestTrials:
    """The fastest trial of each kernel of the problem that is searched now, and the device's clocks at the last one."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.conditions = ""
        self._problem: Mapping[str, Any] = {}

    def take(self, trial: Mapping[str, Any]) -> None:
        """Take a trial's event in; another problem's begins anew."""
        if trial["problem"] != self._problem:
            self._problem, self.times = trial["problem"], {}
        time, kernel = trial.get("median_ms"), str(trial.get("kernel", ""))
        if time and trial.get("round", "search") == "search":
            self.times[kernel] = min(float(time), self.times.get(kernel, float("inf")))
        if told := trial.get("conditions"):
            self.conditions = conditions_text(from_json(Conditions, told))

    def drawn(self) -> Iterable[RenderableType]:
        """A bar a kernel, the fastest first, and the clocks where the device tells them."""
        if self.times:
            yield bars(dict(sorted(self.times.items(), key=lambda one: one[1])))
        if self.conditions:
            yield f"[dim]{self.conditions}[/]"


class _ProgressWithBars(Progress):
    """A progress bar with what was fastest so far below it."""

    def __init__(self, fastest: FastestTrials, *columns: ProgressColumn, console: Console) -> None:
        self._fastest, self._in_place = fastest, console.is_terminal
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, then the kernels' bars in a terminal that shows them in place."""
        yield from super().get_renderables()
        if self._in_place:
            yield from self._fastest.drawn()


def _apply(bar: Progress, task: TaskID, event: Event, narrow: bool) -> None:
    data = event.data
    if event.name == "trial":
        label = f"{from_json(Problem, data['problem'])} {data.get('kernel', '')}"
        bar.update(task, description=_cut(label.replace(" float32", ""), narrow))
        return
    if event.name == "end":
        # A job ends early where its budget is spent: what it did is then all there was to do.
        bar.update(task, completed=1.0, description=_cut(str(data.get("state", "ended")), narrow), left="", best="")
        return
    if data.get("phase") == "finals":
        bar.update(task, description=_cut("finals: the fastest again", narrow))
    best, done = data.get("search_best_ms"), data.get("done", 0)
    over = max(bar.tasks[0].completed, _fraction(data, bar.tasks[0].elapsed or 0.0))  # it never goes back
    so_far = f"so far ~{best:.4g} ms" if best else ""
    devices = len(data.get("devices", ()))
    where = f" on {devices} devices" if devices > 1 else ""
    bar.update(task, completed=over, left=_left_text(data), best=so_far, trials=f"{done} trials{where}")


def _fraction(data: Mapping[str, Any], watched: float) -> float:
    """How much of the job is over: of its time, or of its trials where these will be spent before.

    `watched` is for how many seconds it has been followed, for a service that does not tell for how long it has run.
    """
    elapsed, budget = data.get("elapsed_seconds", watched), data.get("budget_seconds")
    left = data.get("eta_seconds")
    whole = budget or (None if left is None else elapsed + left)
    total = data.get("total")
    trials = data.get("done", 0) / total if total else 0.0
    return float(min(1.0, max(elapsed / whole if elapsed and whole else 0.0, trials)))


def _left_text(data: Mapping[str, Any]) -> str:
    left = data.get("eta_seconds")
    return "" if left is None else f"{left:.0f} s left"


def _cut(words: str, narrow: bool) -> str:
    """Words of one width, so that the bar stands still."""
    width = _WORDS if narrow else 36
    return (words if len(words) <= width else f"{words[: width - 1]}…").ljust(width)
