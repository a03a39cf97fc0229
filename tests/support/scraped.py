"""What a gateway or an engine counts, added up over the series that are asked for."""

import httpx2
from prometheus_client.parser import text_string_to_metric_families


def samples(page: str, name: str, **labels: str) -> list[float]:
    """Of the series with these labels. Only their lines are parsed: a fleet's page has thousands, and tests that
    wait for one of them ask again and again."""
    begins = (f"{name}{{", f"{name} ")
    lines = "".join(line for line in page.splitlines(keepends=True) if line.startswith(begins))
    return [
        sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    ]


async def scraped(http: httpx2.AsyncClient, url: str, name: str, **labels: str) -> float:
    """0 where there is no such series."""
    return sum(samples((await http.get(f"{url}/metrics")).text, name, **labels))
