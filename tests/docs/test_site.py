"""The documentation builds as a site, and nothing in it leads nowhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.source, pytest.mark.slow]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs` does: pages that no menu has, links and anchors that lead nowhere are warnings."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "quick-start" / "index.html").read_text(encoding="utf-8")
    # Nothing is fetched from elsewhere by who reads it.
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page
    # Every block has been taken for one.
    for path in (tmp_path / "site").rglob("*.html"):
        assert "<p>```" not in path.read_text(encoding="utf-8"), path
    drawn = (tmp_path / "site" / "wire" / "vllm-nixl" / "index.html").read_text(encoding="utf-8")
    assert "<figcaption>batch and staged</figcaption>" in drawn
    assert "mermaid" not in drawn
    assert (tmp_path / "site" / "repository" / "benchmarks" / "RESULTS" / "index.html").exists()
