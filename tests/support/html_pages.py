"""Read pages as a browser does."""

from html.parser import HTMLParser

TYPOGRAPHY = {"\N{NO-BREAK SPACE}": " ", "\N{MINUS SIGN}": "-"}


def typed(text: str) -> str:
    """Return a text as it is typed in a test: with ordinary spaces, and the minus of the keyboard."""
    return text.translate(str.maketrans(TYPOGRAPHY))


class Page(HTMLParser):
    """The elements, attributes and text of a page. An element that is not closed and a comment are errors."""

    empty = frozenset({"br", "circle", "line", "meta", "path", "polygon", "polyline", "rect"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.empty:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        assert len(self.elements[-1][1]) == len(attrs), "an attribute occurs twice"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    @property
    def text(self) -> str:
        """The text as it is typed in a test."""
        return " ".join(typed(self.source).split())

    @property
    def source(self) -> str:
        """The text with its own signs."""
        return " ".join(self.texts)


TOOLTIP = "document.getElementById('tooltip').hidden ? '' : document.getElementById('tooltip').textContent"
"""JavaScript that gives the text of the tooltip, empty while it is hidden."""

TRAINING_MARK = """
(() => {
  const mark = document.querySelector("#lives .mark.stage-training");
  mark.scrollIntoView({ block: "center" });
  const box = mark.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()
"""
"""JavaScript that scrolls to the first mark of a seed in training, and gives its middle."""
