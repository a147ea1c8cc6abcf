"""Whatever a model, a log or a name says stays text in every file of the report."""

from __future__ import annotations

import csv
import html.parser
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fixtures.report import study
from markdown_it import MarkdownIt
from markdown_it.token import Token

from bringup import report
from bringup.report import text

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "' onmouseover='window.hacked=1",
    "</style></pre></textarea><svg/onload=window.hacked=1>",
    "<!-- --!> <![CDATA[",
    "| a | b |\n| - | - |\n| c | d |",
    "\\| \\\\| \\",
    "\n\n# heading\n\n- list\n\n```\nfence\n~~~\n",
    "`one` ``two`` ```three```",
    "**bold** _em_ ~~gone~~ ~gone~",
    "[click](javascript:alert(1)) ![see](https://evil.example/x.png) <https://evil.example>",
    "[x]: https://evil.example\n[x]",
    "&lt;b&gt; &#27; &amp;",
    "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x9b31m \b\r\0\x7f",
    "\u202edesrever\u202c zero\u200bwidth \u2028 \u2066 \ufeff",
    "{{ 7 * 7 }} {% raw %} ${x} %s {0}",
    "$x^2$ \\alpha",
    "=HYPERLINK(1) @SUM(1) +1 -1",
    "\ud800",
)

SECRETS = (
    "hf_" + "q" * 30,
    "--api-key topsecret1 --hf-token=topsecret2",
    "/home/somebody/models /Users/somebody/x /root/.cache",
)

NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?")

KEPT = frozenset({"schema", "status", "gate", "verdict", "outcome", "by", "name", "commit"})
"""Keys whose values come from a short list; `name` is spoilt in a test of its own."""


def spoilt(value: Any, key: str, poison: str) -> Any:
    """Return a JSON value with ``poison`` in each of its texts."""
    if isinstance(value, dict):
        return {each: spoilt(item, each, poison) for each, item in value.items()}
    if isinstance(value, list):
        return [spoilt(item, key, poison) for item in value]
    if isinstance(value, str) and key not in KEPT:
        return f"{poison} {value} {poison}"
    return value


def build(folder: Path, poison: str) -> study.Run:
    """Build the report of the made-up run with ``poison`` in every text."""
    run = study.write(folder)
    for path in run.documents:
        if path.exists():
            document = spoilt(json.loads(path.read_text()), "", poison)
            path.write_text(json.dumps(document), encoding="utf-8")
    for entry in run.experiments:
        entry["study"] += poison
        entry["force"] = poison
    report.build(experiments=run.experiments, documents=run.documents, output=folder)
    return run


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    build(folder, "")
    return folder


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("poisoned")
    build(folder, " ".join([*HOSTILE, *SECRETS]))
    return folder


def tokens(folder: Path) -> list[Token]:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    page = parser.parse((folder / "report.md").read_text(encoding="utf-8"))
    return [each for token in page for each in (token, *(token.children or []))]


def count(found: list[Token], *types: str) -> int:
    return sum(token.type in types for token in found)


def test_markdown_has_no_markup_but_its_own(clean: Path, poisoned: Path) -> None:
    ours, theirs = tokens(clean), tokens(poisoned)
    assert count(theirs, "html_inline", "html_block") == 0
    for kind in (
        "heading_open",
        "table_open",
        "tr_open",
        "td_open",
        "image",
        "link_open",
        "s_open",
    ):
        assert count(theirs, kind) == count(ours, kind), kind


def test_markdown_links_and_images_stay_inside_the_results(poisoned: Path) -> None:
    for token in tokens(poisoned):
        place = str(token.attrs.get("href") or token.attrs.get("src") or "")
        assert "://" not in place and not place.startswith("javascript"), place


def test_every_markdown_row_has_as_many_cells_as_its_heading(poisoned: Path) -> None:
    page = (poisoned / "report.md").read_text(encoding="utf-8")
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    lines = page.splitlines()
    tables = [token.map for token in parser.parse(page) if token.type == "table_open"]
    assert tables
    for begin, end in filter(None, tables):
        # A row cut short by a bar inside a cell would end in an empty cell, or lose its last one.
        rows = [line.replace("\\\\", "").replace("\\|", "") for line in lines[begin:end]]
        assert len({row.count("|") for row in rows}) == 1


@pytest.mark.parametrize("name", ["report.md", "report.html", "points.csv"])
def test_no_control_character_is_written(name: str, poisoned: Path) -> None:
    page = (poisoned / name).read_text(encoding="utf-8")
    forbidden = {c for c in page if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0}
    assert forbidden | (set(page) & set("\u202e\u2066\u200b\u2028\ufeff")) == set()


@pytest.mark.parametrize(
    "name",
    ["report.md", "report.html", "report.json", "points.csv", "points.jsonl", "history.jsonl"],
)
def test_no_secret_and_no_home_is_written(name: str, poisoned: Path) -> None:
    page = (poisoned / name).read_text(encoding="utf-8")
    for secret in ("hf_qqqq", "topsecret", "somebody", "/root/"):
        assert secret not in page


class Tags(html.parser.HTMLParser):
    """Collects what an HTML page could do besides showing text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.places: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
                self.places.append(str(value))
            if name == "id":
                self.ids.append(str(value))


def tags(folder: Path) -> Tags:
    found = Tags()
    found.feed((folder / "report.html").read_text(encoding="utf-8"))
    return found


def test_html_has_one_script_no_handler_and_no_outside_address(poisoned: Path) -> None:
    found = tags(poisoned)
    assert found.tags.count("script") == 1
    assert found.tags.count("img") == 0
    assert found.handlers == []
    assert [p for p in found.places if ":" in p or p.startswith("//")] == []


def test_html_has_the_same_elements_as_without_hostile_text(clean: Path, poisoned: Path) -> None:
    ours, theirs = tags(clean), tags(poisoned)
    for tag in ("table", "tr", "td", "details", "figure", "svg", "style", "a"):
        assert theirs.tags.count(tag) == ours.tags.count(tag), tag


def test_html_ids_are_unique(clean: Path) -> None:
    ids = tags(clean).ids
    assert len(ids) == len(set(ids))


def test_spreadsheets_run_nothing_from_the_csv(poisoned: Path) -> None:
    rows = list(csv.reader((poisoned / "points.csv").open(encoding="utf-8")))
    assert len(rows) == 15
    assert {len(row) for row in rows} == {len(rows[0])}
    texts = [cell for row in rows[1:] for cell in row if not NUMBER.fullmatch(cell)]
    assert [cell for cell in texts if cell.startswith(("=", "+", "@", "-"))] == []


@pytest.mark.filterwarnings("ignore:Glyph")  # no font has a sign for everything
def test_hostile_names_stay_names(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    name = "evil|<b>`$x$`\x1b[31m\u202e"
    run.experiments[1]["name"] = name
    (tmp_path / "experiments/nvfp4-marlin").rename(tmp_path / "experiments" / name)
    run.documents = [Path(str(path).replace("nvfp4-marlin", name)) for path in run.documents]
    report.build(experiments=run.experiments, documents=run.documents, output=tmp_path)
    picture = ElementTree.parse(tmp_path / "plots" / "dsv4-flash.output_tok_s.svg")
    shown = "".join(picture.getroot().itertext())
    assert text.plain(name) in shown
    assert count(tokens(tmp_path), "html_inline", "html_block") == 0
    assert "\x1b" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("poison", HOSTILE)
def test_markdown_escape_shows_the_very_characters(poison: str) -> None:
    shown = text.plain(poison)
    for written in (text.markdown(poison), text.code(poison)):
        (paragraph,) = [
            token
            for token in MarkdownIt("commonmark").enable(["strikethrough"]).parse(f"x {written}")
            if token.type == "inline"
        ]
        seen = "".join(child.content for child in paragraph.children or [])
        assert seen == f"x {shown}"


def test_long_text_is_shortened_and_says_by_how_much() -> None:
    assert text.plain("x" * 450) == "x" * 400 + "… (50 more characters)"


def test_a_fence_cannot_be_closed_from_inside() -> None:
    written = text.fenced("```\n````\n<b>")
    (block,) = MarkdownIt("commonmark").parse(written)
    assert (block.type, block.content) == ("fence", "```\n````\n<b>\n")
