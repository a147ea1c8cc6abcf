"""Take the picture of a report's first screen that the README shows.

python docs/picture.py results/report.html docs/report.png
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

import chromium

WIDTH, HEIGHT = 1280, 1000


def main(report: Path, picture: Path) -> None:
    """Open ``report`` in a headless Chromium and write what it shows first to ``picture``."""
    with tempfile.TemporaryDirectory() as home, chromium.page(Path(home)) as page:
        page.show(WIDTH, HEIGHT)
        page.command("Emulation.setScrollbarsHidden", hidden=True)
        page.open(report)
        page.picture(picture, whole=False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
