"""Draw the floors of the packages, and list their layers, from what each distribution states of itself.

    python docs/floors.py

writes ``docs/pictures/architecture.svg``. ``generate.py`` takes the layers of CONTRIBUTING from here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path
from typing import Any, Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "pictures" / "architecture.svg"
LAYERS: Final = run_path(str(ROOT / ".ci" / "layers.py"))

WIDTH: Final = 760
MARGIN: Final = 16
LABEL: Final = 22
GAP: Final = 12
LINE: Final = 17

STYLE: Final = """\
  .floor { fill: none; stroke: #8a939c; stroke-dasharray: 5 4; }
  .box { fill: #f5f7f9; stroke: #57606a; }
  text { fill: #1c2126; font: 14px system-ui, "DejaVu Sans", sans-serif; text-anchor: middle; }
  .small { fill: #57606a; font-size: 12px; }
  .left { text-anchor: start; }
  .name { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .box { fill: #1f262d; stroke: #8a939c; }
    text { fill: #e6eaee; }
    .small { fill: #a3adb8; }
  }
"""


def floors() -> list[list[Any]]:
    """Return the distributions of each floor, the highest floor first."""
    members = LAYERS["members"]()
    numbers = sorted({member.floor for member in members}, reverse=True)
    return [[member for member in members if member.floor == number] for number in numbers]


def distribution(member: Any) -> str:
    """Return the name of a distribution: ``esper-run``."""
    name: str = member.package.replace("_", "-")
    return name


def layer_lines() -> str:
    """Return the layers of the floors and of each package, from the top down, as Markdown."""
    lines = ["- Between packages: " + " → ".join(f"`{floor}`" for floor in LAYERS["floors"]())]
    for member in (member for floor in floors() for member in floor):
        if member.layers:
            names = (layer.replace("(", "").replace(")", "") for layer in member.layers)
            lines.append(f"- In `{member.package}`: " + " → ".join(f"`{layer}`" for layer in names))
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: float) -> list[str]:
    """Return a text in lines that fit into a box of this width."""
    lines = [""]
    for word in text.replace("`", "").split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * 6.3 > width - 16 and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def picture() -> str:
    """Return the drawing: a row for each floor, a box for each distribution, with its use and its modules."""
    parts: list[str] = []
    top = MARGIN
    for floor in floors():
        number, columns = floor[0].floor, len(floor) if len(floor) <= 4 else 3
        width = (WIDTH - 2 * MARGIN - GAP * (columns + 1)) / columns
        rows = [floor[start : start + columns] for start in range(0, len(floor), columns)]
        start, below = top, top + LABEL + 8
        inner: list[str] = []
        for row in rows:
            texts = [[*wrapped(member.use, width), *_modules(member, width)] for member in row]
            height = 34 + LINE * max(map(len, texts))
            for column, (member, lines) in enumerate(zip(row, texts, strict=True)):
                left = MARGIN + GAP + column * (width + GAP)
                inner.append(f'<rect class="box" x="{left:g}" y="{below}" width="{width:g}" height="{height}" rx="6"/>')
                middle = left + width / 2
                inner.append(f'<text class="name" x="{middle:g}" y="{below + 21}">{distribution(member)}</text>')
                inner += [
                    f'<text class="small" x="{middle:g}" y="{below + 21 + LINE * (place + 1)}">{escape(line)}</text>'
                    for place, line in enumerate(lines)
                ]
            below += height + GAP
        height = below - start
        parts.append(
            f'<rect class="floor" x="{MARGIN}" y="{start}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="8"/>'
        )
        parts.append(f'<text class="left small" x="{MARGIN + GAP}" y="{start + LABEL - 2}">floor {number}</text>')
        parts += inner
        top = below + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
            'role="img" aria-labelledby="title desc">',
            '<title id="title">Three floors</title>',
            '<desc id="desc">The distributions of Esper on three floors. Each uses those below it.</desc>',
            f"<style>\n{STYLE}</style>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _modules(member: Any, width: float) -> list[str]:
    """Return the names of the modules of a package that states its layers, the lowest last."""
    layers = [
        layer.replace(" | ", ", ").strip("()") for layer in member.layers if not layer.strip("()").startswith("_")
    ]
    return wrapped(" · ".join(layers), width) if layers else []


def main() -> int:
    """Write the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
