"""Report of the results: a table for people, JSON for programs, JUnit's XML for CI."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from rich import box
from rich.table import Table
from rich.text import Text

from pdgate.cluster.printable import printable
from pdgate.lab.conformance.check import Result, Verdict

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.NOT_APPLICABLE: "dim"}


@dataclass(frozen=True, slots=True)
class Report:
    protocol: str
    mode: str
    generation: str
    results: Sequence[Result]

    @property
    def failed(self) -> list[Result]:
        return self._with(Verdict.FAIL)

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.protocol, self.generation, self.mode)))

    def summary(self) -> str:
        counts = ", ".join(
            f"{len(found)} {word}"
            for verdict, word in (
                (Verdict.PASS, "passed"),
                (Verdict.FAIL, "failed"),
                (Verdict.NOT_APPLICABLE, "not applicable"),
            )
            if (found := self._with(verdict))
        )
        return f"{self.title}: {counts}"

    def table(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, title=self.title, title_justify="left")
        drawn.add_column("check", no_wrap=True)
        drawn.add_column("verdict", no_wrap=True)
        drawn.add_column("what it means, and what was seen")
        drawn.add_column("s", justify="right", no_wrap=True)
        for one in self.results:
            # An engine's words: [/INST] is no markup of ours.
            seen = "\n-> ".join(map(printable, one.reason.splitlines()))
            said = Text(f"{one.check.means}\n-> {seen}" if seen else one.check.means)
            drawn.add_row(
                one.check.id, one.verdict, said, f"{one.seconds:.1f}", style=COLOURS[one.verdict]
            )
        return drawn

    def as_json(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "mode": self.mode,
            "generation": self.generation or None,
            "passed": not self.failed,
            "checks": [
                {
                    "id": one.check.id,
                    "means": one.check.means,
                    "verdict": one.verdict.value,
                    "reason": one.reason or None,
                    "seconds": round(one.seconds, 3),
                }
                for one in self.results
            ],
        }

    def junit(self) -> bytes:
        """One suite, a case for each check; what is not applicable is skipped."""
        skipped = len(self._with(Verdict.NOT_APPLICABLE))
        suite = ElementTree.Element(
            "testsuite",
            name=f"pdgate conformance {self.title}",
            tests=str(len(self.results)),
            failures=str(len(self.failed)),
            errors="0",
            skipped=str(skipped),
            time=f"{sum(one.seconds for one in self.results):.3f}",
        )
        for one in self.results:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"conformance.{self.protocol}",
                name=one.check.id,
                time=f"{one.seconds:.3f}",
            )
            if one.verdict is Verdict.FAIL:
                failure = ElementTree.SubElement(case, "failure", message=one.reason)
                failure.text = one.check.means
            elif one.verdict is Verdict.NOT_APPLICABLE:
                ElementTree.SubElement(case, "skipped", message=one.reason)
        root = ElementTree.Element("testsuites")
        root.append(suite)
        written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return written

    def _with(self, verdict: Verdict) -> list[Result]:
        return [one for one in self.results if one.verdict is verdict]
