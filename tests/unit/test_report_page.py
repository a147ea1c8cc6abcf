"""The HTML report in a real browser: it works offline, on a phone, in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from fixtures.report import study
from test_report_hostile import HOSTILE, build

from bringup import report

pytestmark = pytest.mark.skipif(
    chromium.BROWSER is None, reason="needs a Chromium to open the report in: none is installed"
)

ORDER = (
    "[...document.querySelectorAll('#experiments-table tbody tr')]"
    ".filter(row => !row.hidden).map(row => row.querySelector('a').textContent)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    run = study.write(folder)
    report.build(experiments=run.experiments, documents=run.documents, output=folder)
    return folder


@pytest.fixture
def page(browser: chromium.Page, results: Path) -> chromium.Page:
    browser.requests.clear()
    browser.complaints.clear()
    browser.show()
    browser.open(results / "report.html")
    return browser


def choose(page: chromium.Page, control: str, value: str) -> None:
    """Set a control of the filter as a person would."""
    page.value(
        f"""(() => {{
          const control = document.querySelector("form.filters").elements.namedItem("{control}");
          control.value = "{value}";
          for (const kind of ["input", "change"])
            control.dispatchEvent(new Event(kind, {{bubbles: true}}));
        }})()"""
    )


def test_it_asks_for_nothing_but_itself_and_complains_of_nothing(
    page: chromium.Page, results: Path
) -> None:
    page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.requests == [(results / "report.html").resolve().as_uri()]
    assert page.complaints == []


def test_everything_is_there_in_the_order_of_the_config(page: chromium.Page) -> None:
    assert page.value(ORDER)[:3] == ["mxfp4-stock", "nvfp4-marlin", "nvfp4-cutlass"]
    assert page.value("document.querySelector('output').textContent") == "9 of 9"


def test_a_click_on_a_level_sorts_best_first_and_wrong_answers_last(page: chromium.Page) -> None:
    page.value("document.querySelector('th[data-sort=\"output_tok_s-8\"] button').click()")
    order = page.value(ORDER)
    assert order[:5] == ["bf16-stock", "bf16-ours", "nvfp4-marlin", "nvfp4-cutlass", "mxfp4-stock"]
    assert order.index("nvfp4-triton") > order.index("mxfp4-stock")
    assert page.value("document.querySelector('[aria-sort]').textContent") == "C = 8"


def test_a_second_click_turns_the_order_round_and_wrong_answers_stay_last(
    page: chromium.Page,
) -> None:
    for _ in range(2):
        page.value("document.querySelector('th[data-sort=\"output_tok_s-8\"] button').click()")
    order = page.value(ORDER)
    assert order[:2] == ["mxfp4-stock", "nvfp4-cutlass"]
    assert order.index("nvfp4-triton") > order.index("bf16-stock")


def test_latency_sorts_from_the_lowest(page: chromium.Page) -> None:
    choose(page, "sort", "ttft_ms_p50-16")
    assert page.value(ORDER)[:3] == ["nvfp4-marlin", "nvfp4-cutlass", "mxfp4-stock"]


@pytest.mark.parametrize(
    ("control", "value", "left"),
    [
        ("text", "TRTLLM", ["nvfp4-routed"]),
        ("text", "nvfp4 marlin", ["nvfp4-marlin", "nvfp4-late"]),
        ("status", "wrong", ["nvfp4-triton"]),
        ("study", "arithmetic", ["bf16-stock", "bf16-ours"]),
        ("text", "nothing like it", []),
    ],
)
def test_filters(page: chromium.Page, control: str, value: str, left: list[str]) -> None:
    choose(page, control, value)
    assert page.value(ORDER) == left
    assert page.value("document.querySelector('output').textContent") == f"{len(left)} of 9"


def test_a_link_opens_the_section_that_it_leads_to(page: chromium.Page) -> None:
    page.value("document.querySelector('#experiments-table a').click()")
    assert page.value("document.getElementById('experiment-mxfp4-stock').open") is True


def test_the_chapters_lead_to_sections_that_are_there(page: chromium.Page) -> None:
    links = page.value(
        "[...document.querySelectorAll('nav a')].map(each => [each.textContent, "
        "document.querySelector(each.getAttribute('href')) !== null])"
    )
    assert {"Table", "Problems", "Energy", "Provenance"} <= {name for name, _ in links}
    assert all(there for _, there in links)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("width", [390, 768])
def test_no_page_is_wider_than_the_screen(page: chromium.Page, width: int, opened: bool) -> None:
    page.show(width=width, height=844)
    page.value(f"document.querySelectorAll('details').forEach(each => each.open = {opened:d})")
    assert page.value("document.documentElement.scrollWidth") <= width
    too_wide = """[...document.querySelectorAll("body *")].filter(each =>
        each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)"""
    assert width > 390 or page.value(too_wide) == []


CONTRAST = """(() => {
  const channel = (value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const parsed = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => {
    const [red, green, blue] = parsed(colour).map(channel);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (parsed(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(svg *)")) {
    const own = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!own || !element.checkVisibility() || element.tagName === "SCRIPT") continue;
    const pair = [light(getComputedStyle(element).color), light(paper(element))].sort();
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) poor.push(element.outerHTML + " " + ratio);
  }
  return poor;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_from_its_background(page: chromium.Page, dark: bool) -> None:
    page.show(dark=dark)
    page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.value(CONTRAST) == []  # WCAG 2.2, 1.4.3: 4.5 to 1


def test_the_pictures_follow_the_theme(page: chromium.Page) -> None:
    ink = "getComputedStyle(document.querySelector('figure text')).fill"
    light = page.value(ink)
    page.show(dark=True)
    assert page.value(ink) != light


def test_print_shows_everything(page: chromium.Page) -> None:
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("[...document.querySelectorAll('details')].every(each => each.open)") is True
    page.command("Emulation.setEmulatedMedia", media="print")
    shown = "getComputedStyle(document.querySelector('details.experiment')).contentVisibility"
    assert page.value(shown) == "visible"
    page.command("Emulation.setEmulatedMedia", media="")


def test_hostile_text_runs_nothing(browser: chromium.Page, tmp_path: Path) -> None:
    build(tmp_path, " ".join(HOSTILE))
    browser.requests.clear()
    browser.complaints.clear()
    browser.show(width=390, height=844)
    browser.open(tmp_path / "report.html")
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.value("typeof window.hacked") == "undefined"
    assert browser.requests == [(tmp_path / "report.html").resolve().as_uri()]
    assert browser.complaints == []
    assert browser.value("document.documentElement.scrollWidth") <= 390
