"""The documentation builds as a site, nothing in it leads nowhere, and nothing is cut in a browser."""

import functools
import http.server
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from selenium.webdriver import Chrome

from tests.gateway.console.browser import browser, missing, size
from tests.support.waiting import wait_until
from tools.docs_site import CONFIG, Wrong, check_menu, check_pictures, prepared, redirects

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.source]
built = pytest.mark.slow

# Pages that were called otherwise once. A row is never taken out: somewhere a link still has it.
MOVED = {
    "operations/admission": "operations/admission-control",
    "operations/chaos": "operations/fault-injection",
    "operations/directory": "operations/service-discovery",
    "operations/disaggregation": "operations/conditional-disaggregation",
    "operations/drain": "operations/drain-and-reload",
    "operations/failures": "operations/retries-and-failover",
    "operations/health": "operations/health-checks",
    "operations/policies": "operations/routing-policies",
    "operations/predictors": "operations/latency-prediction",
    "operations/prefix-index": "operations/prefix-cache-routing",
    "operations/replicas": "operations/gateway-replicas",
    "operations/resume": "operations/stream-resumption",
    "operations/transfer": "operations/kv-transfer",
    "operations/verification": "operations/kv-verification",
    "operations/workers": "operations/worker-processes",
}

# What a reader loses: a page wider than its window, figures beyond their column or not loaded, and
# names in the first column of a table that are broken in two.
CUT = """
const found = [];
const column = document.querySelector("article").getBoundingClientRect();
if (document.documentElement.scrollWidth > window.innerWidth) found.push("the page");
for (const figure of document.querySelectorAll("article img, article figure > svg")) {
  const name = figure.getAttribute("src") || figure.textContent.slice(0, 40);
  if (figure.tagName === "IMG" && !figure.naturalWidth) found.push("not loaded: " + name);
  const scrolls = getComputedStyle(figure.parentElement).overflowX === "auto";
  if (!scrolls && figure.getBoundingClientRect().right > column.right + 1) found.push("cut: " + name);
}
if (window.innerWidth > 1220)
  for (const block of document.querySelectorAll("article pre code"))
    if (block.scrollWidth > block.clientWidth + 1) found.push("cut: " + block.textContent.slice(0, 40));
for (const name of document.querySelectorAll("article td:first-child code"))
  if (name.getClientRects().length > 1) found.push("broken: " + name.textContent);
return found;
"""


WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: links and anchors that lead nowhere are errors."""
    folder = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@built
def test_the_site_has_every_page_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        stem = page.parent if page.stem in ("index", "README") else page.with_suffix("")
        assert (site / stem / "index.html").exists(), page
    for path in site.rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        assert 'src="http' not in html, path
        assert 'rel="stylesheet" href="http' not in html, path
        # Every block has been taken for one.
        assert "<p>```" not in html, path
        assert 'class="mermaid"' not in html, path
    drawn = (site / "wire" / "vllm-nixl" / "index.html").read_text(encoding="utf-8")
    assert "<figcaption>batch and staged</figcaption>" in drawn
    assert (site / "repository" / "benchmarks" / "RESULTS" / "index.html").exists()
    assert (site / "search.json").exists()


@built
@pytest.mark.parametrize("old", MOVED)
def test_an_old_address_leads_to_the_page(site: Path, old: str) -> None:
    """With the anchor that it came with, and without scripts too."""
    html = (site / old / "index.html").read_text(encoding="utf-8")

    target = html.partition('http-equiv="refresh" content="0; url=')[2].partition('"')[0]
    assert urljoin(f"http://site/{old}/", target) == f"http://site/{MOVED[old]}/"
    assert (site / MOVED[old] / "index.html").exists()


def test_every_redirect_is_known_here() -> None:
    known = {f"{old}.md": f"{new}.md" for old, new in MOVED.items()}

    assert redirects(tomllib.loads(CONFIG.read_text(encoding="utf-8"))) == known


@built
@pytest.mark.parametrize(
    "fault", ["[a](nowhere.md)", "[a](#nowhere)", "[a](other.md#nowhere)", "[a](../none.md)"]
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, fault: str) -> None:
    """That is Zensical's part: we look for nothing but what it does not."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# a\n\n{fault}\n", encoding="utf-8")
    (tmp_path / "docs" / "other.md").write_text("# b\n", encoding="utf-8")
    (tmp_path / CONFIG.name).write_text('[project]\nsite_name = "a"\n', encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(tmp_path / CONFIG.name)],
        capture_output=True,
        timeout=300,
        check=False,
    )

    assert done.returncode != 0


def test_pages_and_menu_must_agree() -> None:
    def config(nav: list[object], **moved: str) -> dict[str, object]:
        return {"project": {"nav": nav, "plugins": {"redirects": {"redirect_maps": moved}}}}

    check_menu({"a.md", "b.md"}, config(["a.md", {"More": ["b.md"]}], c="b.md"))
    with pytest.raises(Wrong, match=r"menu: b\.md"):
        check_menu({"a.md", "b.md"}, config(["a.md"]))
    with pytest.raises(Wrong, match=r"menu: b\.md"):
        check_menu({"a.md"}, config(["a.md", "b.md"]))
    with pytest.raises(Wrong, match=r"none: gone\.md"):
        check_menu({"a.md"}, config(["a.md"], old="gone.md"))


def test_a_picture_that_is_not_there_is_an_error() -> None:
    check_pictures("index.md", "![the console](images/console.png)")
    with pytest.raises(Wrong, match=r"operations/x\.md shows images/console\.png"):
        check_pictures("operations/x.md", "![the console](images/console.png)")


def test_links_into_the_repository_become_pages_of_the_site() -> None:
    page = "[r](../../benchmarks/RESULTS.md#kv-transfer) [d](../../deploy) [c](../cli.md)"

    assert prepared("operations/x.md", page) == (
        "[r](../repository/benchmarks/RESULTS.md#kv-transfer) "
        "[d](../repository/deploy/index.md) [c](../cli.md)"
    )


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    serve = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def resized(driver: Chrome, width: int) -> None:
    size(driver, width, 900)
    wait_until(lambda: driver.execute_script("return innerWidth") == width, f"{width} points")


@built
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_nothing_is_cut_in_a_browser(site: Path, address: str) -> None:
    """On a desk and on a phone: a page is loaded once and shown in both."""
    found = {}
    widths = WIDTHS
    with browser() as driver:
        # Each page would read the index of all pages, which is of use for a search alone.
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/search.json"]})
        for page in sorted((ROOT / "docs").rglob("*.md")):
            name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
            path = "" if name == "index" else name.removesuffix("README").rstrip("/") + "/"
            driver.get(f"{address}/{path}")
            for width in widths:
                resized(driver, width)
                if cut := driver.execute_script(CUT):
                    found[path, width] = cut
            # The next is loaded in the width that there is.
            widths = widths[::-1]

    assert found == {}
