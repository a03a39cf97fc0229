"""What a gateway or an engine counts, added up over the series that are asked for."""

import httpx2
from prometheus_client.parser import text_string_to_metric_families


async def scraped(http: httpx2.AsyncClient, url: str, name: str, **labels: str) -> float:
    """0 where there is no such series."""
    text = (await http.get(f"{url}/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
