"""Write text that came from models, logs and people so that it stays text.

Everything that a report shows passes through here: control characters become visible signs (no
terminal escape survives), and each output format has its own way of saying "these characters
mean nothing".  HTML is escaped by the templates themselves.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from bringup.paths import homeless
from bringup.redact import redacted

LONGEST = 400
"""Characters of one shown text; the artefact holds the rest."""

LONGEST_SLUG = 100

HOME = re.compile(r"\{home\}|(?<![\w.])(?:/home|/Users)/[^/\s\"':;,]+|(?<![\w./])/root(?=/)")
"""A home folder, which names a user."""

_LINE_BREAKS = {"\n": "⏎", "\r": "", "\t": " ", "\u2028": "⏎", "\u2029": "⏎", "\x85": "⏎"}
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_MEANING = r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|&(?=[#\w]+;)|#(?=\d)|<(?=[A-Za-z/!?])"
_IN_LINE = re.compile(_MEANING + r"|\](?=[(\[:])")
_IN_LABEL = re.compile(_MEANING + r"|[\[\]]")
"""What means something inside a line or a link's label: an underscore within a word does not."""


def plain(text: object, longest: int = LONGEST) -> str:
    """Return ``text`` as one line of visible characters, shortened to ``longest``.

    Terminal escapes, bidirectional overrides, zero-width characters and lone surrogates become
    visible signs; a line break becomes ``⏎``.
    """
    line = _without_home(str(text)).rstrip()
    if not line.isprintable():
        line = "".join(map(_visible, line))
    if len(line) <= longest:
        return line
    return f"{line[:longest]}… ({len(line) - longest} more characters)"


def _without_home(line: str) -> str:
    return HOME.sub("~", homeless(line)) if "/" in line or "{" in line else line


def _visible(character: str) -> str:
    if character in _LINE_BREAKS:
        return _LINE_BREAKS[character]
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def markdown(text: object) -> str:
    """Return ``text`` as inline Markdown that shows exactly these characters, also in a table."""
    return _escaped(_IN_LINE, plain(text))


def link(label: object, target: str) -> str:
    """Return a Markdown link to ``target`` that shows exactly the characters of ``label``."""
    place = re.sub(r"[<>\\|]", "", plain(target))
    place = place if re.fullmatch(r"[\w./#-]+", place) else f"<{place}>"
    return f"[{_escaped(_IN_LABEL, plain(label))}]({place})"


def reference(label: str) -> str:
    """Return a link to the heading ``label``, short where `references` defines it."""
    if _SHORT.fullmatch(label):
        return f"[{label}]"
    return link(label, f"#{heading_anchor(plain(label))}")


def references(labels: Iterable[str]) -> str:
    """Return the definitions that the short links of `reference` need, for the end of a page."""
    short = dict.fromkeys(label for label in labels if _SHORT.fullmatch(label))
    return "\n".join(f"[{label}]: #{heading_anchor(label)}" for label in short)


_SHORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?:_[A-Za-z0-9.-]+)*")


def _escaped(meaning: re.Pattern[str], line: str) -> str:
    return meaning.sub(lambda match: "\\" + match.group(), line)


def code(text: object) -> str:
    """Return ``text`` as a Markdown code span, or escaped where a table would cut a span short."""
    line = plain(text)
    if not line or "|" in line:
        return markdown(line)
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if "`" in line or line != line.strip() else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def fenced(lines: object, language: str = "text") -> str:
    """Return text of several lines as a fenced Markdown block that it can't end early."""
    body = [plain(line, longest=4000) for line in str(lines).splitlines()]
    fence = "`" * max(3, _longest_run("\n".join(body)) + 1)
    return "\n".join([fence + language, *body, fence])


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def heading_anchor(title: str) -> str:
    """Return the anchor that code hosts give a Markdown heading with this title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def slug(name: str) -> str:
    """Return a name usable as a file name and an HTML id; two names never become one."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:LONGEST_SLUG]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def clean(value: Any) -> Any:
    """Return a JSON value without secrets, without home folders, and writable as UTF-8."""
    return redacted(value, _writable)


def _writable(line: str) -> str:
    shown = _without_home(line)
    return shown if shown.isascii() else shown.encode("utf-8", "replace").decode()


def sentence(words: str) -> str:
    """Return ``words`` with a full stop at the end, unless something ends them already."""
    return words if words.endswith((".", "!", "?", ":", "…")) else f"{words}."
