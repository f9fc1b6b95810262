"""A report taken apart by the standard library's parser, for tests that ask what a browser would see."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple

VOID = {"meta", "br", "hr", "img", "link", "input", "base", "source", "embed"}


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str]
    text: str
    """All text inside, in order."""
    path: tuple[str, ...]
    """Tags of the ancestors, outermost first."""
    parent: int
    """Place of the parent among all elements; -1 at the top."""


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.comments: list[str] = []
        self._open: list[tuple[int, str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        path = tuple(opened for _, opened, _ in self._open)
        parent = self._open[-1][0] if self._open else -1
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}, "", path, parent))
        if tag not in VOID:
            self._open.append((len(self.elements) - 1, tag, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        index, opened, texts = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self.elements[index] = self.elements[index]._replace(text="".join(texts))

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def finish(self) -> None:
        assert not self._open, f"not closed: {[tag for _, tag, _ in self._open]}"


class Page(NamedTuple):
    html: str
    elements: list[Element]
    comments: list[str]

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def by_id(self, element_id: str) -> Element:
        (found,) = [element for element in self.elements if element.attributes.get("id") == element_id]
        return found

    def table_rows(self) -> list[list[str]]:
        """Cell texts of every table row, with spaces joined."""
        rows: dict[int, list[str]] = {}
        for element in self.elements:
            if element.tag in ("td", "th"):
                rows.setdefault(element.parent, []).append(" ".join(element.text.split()))
        return list(rows.values())

    def data_values(self) -> set[str]:
        """The exact values of all figures."""
        return {element.attributes["value"] for element in self.all("data")}

    def facts(self) -> list[tuple[str, str]]:
        """Pairs of every definition list, with spaces joined."""
        terms = [element for element in self.elements if element.tag in ("dt", "dd")]
        return [
            (" ".join(term.text.split()), " ".join(value.text.split()))
            for term, value in pairwise(terms)
            if term.tag == "dt" and value.tag == "dd"
        ]


def parse_page(html: str) -> Page:
    """Take `html` apart; asserts that every element is closed in order."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    builder.finish()
    return Page(html, builder.elements, builder.comments)
