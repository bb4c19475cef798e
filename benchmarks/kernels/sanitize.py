"""The kernels under compute-sanitizer: a line for each config and tool, with the errors that it found.

    python -m benchmarks.kernels.sanitize [--winners FILE.json] [--tools memcheck,racecheck] [--out FILE.json]
    python -m benchmarks.kernels.sanitize --device opencl     the same launches on the processor, without the sanitizer

Each kernel's defaults for the usual classes of problems, and the winners given as a JSON list of
{"kernel": ..., "config": {...}, "problem": {"m": ..., ...}}, are launched on small and ragged problems of their class,
as the service launches one problem's binary on another.
Every operand is an allocation of its own, not a byte larger than it is, and starts on a multiple of 16 bytes or one
element past it: memcheck then sees what is read or written outside, or unaligned. C and the workspace are poisoned
before, and C is compared with a float64 product. compute-sanitizer comes with the CUDA toolkit, or as the wheel
nvidia-cuda-sanitizer-api-cu12. The exit status is 1 where anything was found, or nothing could be.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.kernels.sanitized import MARK
from kernels import CATALOGUE

EXIT = 9
# What is found begins at the prefix, the rest of it further in.
HEADER = re.compile(r"^========= (?!COMPUTE-SANITIZER|.*SUMMARY:)(\S.*)")
# Where what is found was, and where memory is.
PLACE = re.compile(r"^=========     ((?:Access|Address|and is) .*)")
SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+) ")


@dataclass
class Finding:
    """What became of one case under one tool; `wrong` is None where every product was right.

    `first` is the first error, and where in memory it was.
    """

    tool: str
    name: str
    problems: list[str]
    errors: int = 0
    first: str = ""
    wrong: str | None = None

    def line(self) -> str:
        """For the terminal."""
        end = f"{self.first} {self.wrong or ''}".strip()
        return f"{self.tool:9} {self.name}: {self.errors} errors, {len(self.problems)} problems {end}".rstrip()


@dataclass
class Report:
    """All findings of a tool; `counted` is the sanitizer's own count of errors, None where it gave none."""

    tool: str
    device: str = ""
    total: int | None = None
    done: int = 0
    counted: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def heed(self, line: str) -> None:
        """Take one line of the launching process, or of the sanitizer."""
        if line.startswith(MARK):
            facts = json.loads(line.removeprefix(MARK))
            self.device, self.total = facts.get("device", self.device), facts.get("of", self.total)
            if "begins" in facts:
                self.findings.append(Finding(self.tool, facts["name"], facts["problems"]))
            if "ends" in facts:
                self.end(facts["wrong"])
        elif summary := SUMMARY.match(line):
            self.counted = (self.counted or 0) + int(summary[1])
        elif (header := HEADER.match(line)) and self.findings:
            self.findings[-1].errors += 1
            self.findings[-1].first = self.findings[-1].first or header[1]
        elif (place := PLACE.match(line)) and self.findings and self.findings[-1].errors == 1:
            self.findings[-1].first += f", {place[1]}"

    def end(self, wrong: str | None) -> None:
        """The last case that began is over."""
        self.findings[-1].wrong = wrong
        self.done = len(self.findings)
        print(self.findings[-1].line(), flush=True)

    def faults(self) -> list[str]:
        """Why the kernels are not clean under this tool."""
        found = [each.line() for each in self.findings if each.errors or each.wrong]
        if self.tool != "none" and self.counted != sum(each.errors for each in self.findings):
            found.append(f"{self.tool} itself counts {self.counted} errors")
        return found


def wrapper(given: str | None, tool: str) -> list[str]:
    """How a program is run under a tool; raises SystemExit where there is no compute-sanitizer."""
    roots = getattr(find_spec("nvidia"), "submodule_search_locations", None) or []
    wheels = [str(path) for root in roots if (path := Path(root, "cuda_sanitizer_api/bin/compute-sanitizer")).exists()]
    found = next(filter(None, [given, shutil.which("compute-sanitizer"), *wheels]), None)
    if found is None:
        raise SystemExit("no compute-sanitizer here: pip install nvidia-cuda-sanitizer-api-cu12, or --sanitizer PATH")
    libraries = Path(found).resolve().parent.parent / "lib"
    injection = ["--injection-path", str(libraries)] if (libraries / "libsanitizer-collection.so").exists() else []
    # A faulty kernel ends alone, the next ones are launched; what is past an allocation is no other's.
    memory = ["--destroy-on-device-error", "kernel", "--padding", "65536", "--report-api-errors", "no"]
    common = ["--error-exitcode", str(EXIT), "--print-limit", "10000", "--show-backtrace", "no"]
    return [found, *injection, "--tool", tool, *common, *(memory if tool == "memcheck" else [])]


def once(report: Report, command: list[str]) -> str:
    """Start the launching process, and heed it to its end; gives its status and its last lines."""
    tail: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - PIPE was asked for
        for line in process.stdout:
            report.heed(line.rstrip("\n"))
            tail = [*tail[-30:], line]
    return f"the process ended with {process.returncode}:\n{''.join(tail)}"


def under(tool: str, options: argparse.Namespace) -> Report:
    """Run all cases under a tool; one that takes the process with it is a finding, and the next ones go on."""
    report = Report(tool)
    watched = [] if tool == "none" else wrapper(options.sanitizer, tool)
    command = [*watched, sys.executable, "-m", "benchmarks.kernels.sanitized", "--device", options.device]
    command += ["--cache", str(options.cache), "--kernels", options.kernels]
    command += ["--winners", str(options.winners)] if options.winners else []
    command += ["--watched"] if watched else []
    while report.total is None or report.done < report.total:
        before = len(report.findings)
        how = once(report, [*command, "--skip", str(before)])
        if len(report.findings) == before:
            raise SystemExit(f"{tool}: nothing was launched, {how}")
        if report.done < len(report.findings):
            report.end(how.replace("\n", " | ")[-2000:])
    return report


def main() -> None:
    """Run all tools, and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernels", default=",".join(CATALOGUE))
    parser.add_argument("--winners", type=Path, help="a JSON list of kernels, configs and problems")
    parser.add_argument("--tools", help="memcheck, racecheck, synccheck, initcheck, none; memcheck,racecheck on a GPU")
    parser.add_argument("--sanitizer", help="compute-sanitizer's path")
    parser.add_argument("--cache", type=Path, help="compiled kernels, kept from run to run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tools = options.tools or ("memcheck,racecheck" if options.device.startswith("cuda") else "none")
    with tempfile.TemporaryDirectory() as fresh:
        options.cache = options.cache or Path(fresh)
        reports = [under(tool, options) for tool in tools.split(",")]
    faults = [fault for report in reports for fault in report.faults()]
    if options.out is not None:
        content = {"faults": faults, "reports": [asdict(report) for report in reports]}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join([f"\n{len(faults)} faults", *faults]))
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
