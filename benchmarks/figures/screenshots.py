"""Screenshots of every page, on a laptop and on a phone.

    python benchmarks/figures/screenshots.py --demo runs/demo

It needs Chromium (`apt-get install chromium`), and the folder of a demo for the report. The other pages are made here,
in five minutes on one core.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import tyro
from PIL import Image

import nac_drive as nd
from nac_drive.cli.main import main as run

sys.path.insert(0, str(Path(__file__).parents[2]))  # the browser of the tests
from tests.browser import CHROMIUM, Page, browser

SIZES = {"laptop": (1366, 768), "phone": (390, 844)}
TRACK, LOST = 900_003, "frame-drop:3:zero"
MOST_BYTES = 1_500_000


@dataclass
class Options:
    """What is shown, and where."""

    demo: Path = Path("runs/demo")
    """Folder of a demo, whose report is shown if it is there."""
    pages: Path | None = None
    """Folder that keeps the pages; those that are there are not made again."""
    out: Path = Path("docs/figures/screenshots")
    """Folder of the screenshots."""


def make_pages(folder: Path) -> dict[str, Path]:
    """Make the pages that are files, unless they are there."""
    pages = {
        "inspect": folder / "inspect" / "episode.html",
        "watch": folder / "watch.html",
        "evaluation": folder / "evaluation" / "report.html",
        "stress": folder / "stress" / "report.html",
    }
    drivers = ["champion", "robust-champion"]
    if not pages["inspect"].exists():
        nd.inspect(drivers, TRACK, folder=folder / "inspect", control="continuous", perturbation=LOST)
    if not pages["watch"].exists():
        nd.watch("champion", TRACK, html=pages["watch"], control="continuous")
    if not pages["evaluation"].exists():
        words = ["evaluate", "--driver", "champion", "--tracks", "test-10", "--out", str(pages["evaluation"].parent)]
        run([*words, "--control", "continuous"])
    if not pages["stress"].exists():
        words = ["stress", "--drivers", *drivers, "--perturb", "gap", "frame-drop:zero", "--tracks", "test-4"]
        run([*words, "--control", "continuous", "--out", str(pages["stress"].parent)])
    return pages


@contextmanager
def serving() -> Iterator[str]:
    """Serve an arena that ends with its last page."""
    ready, addresses = threading.Event(), []

    def on_ready(address: str) -> None:
        addresses.append(address)
        ready.set()

    def serve() -> None:
        nd.arena(["human", "champion"], TRACK, port=0, until_left=True, on_ready=on_ready)

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    yield addresses[0]
    thread.join()


def save(page: Page, out: Path, name: str, form: str) -> None:
    """Write the page as it is, in both colours."""
    for dark in (False, True):
        image = Image.open(BytesIO(page.screenshot(*SIZES[form], dark=dark))).convert("RGB")
        image.save(out / f"{name}-{form}-{'dark' if dark else 'light'}.webp", quality=72, method=6)


def show_file(page: Page, file: Path, out: Path, name: str) -> None:
    """Save a page in every size."""
    for form, size in SIZES.items():
        page.screenshot(*size)  # it is opened in its size
        page.open(file.resolve().as_uri())
        if name in ("inspect", "watch"):
            page.wait("document.body.dataset.ready")
        save(page, out, name, form)


def show_arena(page: Page, address: str, out: Path) -> None:
    """Save the arena two seconds after the start. The person holds the gas."""
    for form, size in SIZES.items():
        page.screenshot(*size)
        page.open(f"{address}/")
        page.wait("state && header")
        page.run("send({type: 'restart'}); send({type: 'pause', on: false});")
        page.wait("header.frame < 50")  # the race has begun anew
        page.key("ArrowUp", True)
        page.wait("header.frame > 100")
        page.run("send({type: 'pause', on: true})")
        page.wait("state.paused")
        save(page, out, "arena", form)


def main(options: Options) -> None:
    """Make the pages and their screenshots."""
    if CHROMIUM is None:
        sys.exit("no Chromium; install it, for example by apt-get install chromium.")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.pages or Path(scratch, "pages")
        folder.mkdir(parents=True, exist_ok=True)
        pages = make_pages(folder)
        if (options.demo / "report.html").exists():
            pages["report"] = options.demo / "report.html"
        with browser(Path(scratch, "profile")) as page:
            for name, file in pages.items():
                show_file(page, file, options.out, name)
            with serving() as address:
                show_arena(page, address, options.out)
                page.open("about:blank")
    size = sum(file.stat().st_size for file in options.out.glob("*.webp"))
    print(f"{options.out}: {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES / 1e6:.1f} MB; take a lower quality.")


if __name__ == "__main__":
    main(tyro.cli(Options))
