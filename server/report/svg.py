"""SVG that may stand in a page under a strict policy: no style attributes, no style elements, no links outside.

matplotlib writes style attributes, a style element for the whole document and ids that repeat between figures.
`inline` turns the first into presentation attributes and classes (so that the page's light and dark colours apply),
drops the second and prefixes the third.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"(?:(?P<weight>bold|\d{3})\s+)?(?P<size>[\d.]+px)\s")
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)

#: Colours that plots are drawn in, and the class that replaces them: `f-` fills, `s-` strokes (templates/style.css).
CLASSES = {
    "#000000": "ink", "#777777": "faint", "#dddddd": "grid",
    "#0072b2": "c0", "#d55e00": "c1", "#009e73": "c2", "#cc79a7": "c3", "#e69f00": "c4", "#56b4e9": "c5",
}  # fmt: skip


def legal(text: str) -> str:
    """Text without what XML cannot hold (control characters, lone surrogates) and without marks that turn the direction of
    what follows, which would show a number or verdict backwards."""
    return _UNSAFE.sub("\ufffd", text)


def inline(raw: str, *, prefix: str, label: str, titles: Mapping[str, str] | None = None) -> str:
    """A figure written by matplotlib as an element for a page.

    prefix: made part of every id. label: what a screen reader says of the picture. titles: group id -> tooltip.
    """
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(raw[raw.index("<svg") :])
    _clean(root, prefix, titles or {})
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", legal(label))
    return ET.tostring(root, encoding="unicode").replace("\n", "")


def _clean(node: ET.Element, prefix: str, titles: Mapping[str, str]) -> None:
    for child in [c for c in node if c.tag in _DROPPED]:
        node.remove(child)
    for child in node:
        _clean(child, prefix, titles)
    given = node.attrib.pop("style", "")
    classes = []
    for part in filter(None, (p.strip() for p in given.split(";"))):
        name, _, value = (s.strip() for s in part.partition(":"))
        if name in ("fill", "stroke") and value.lower() in CLASSES:
            classes.append(f"{name[0]}-{CLASSES[value.lower()]}")
        elif name == "font":
            found = _FONT.match(value)
            if found:
                node.set("font-size", found["size"])
                if found["weight"]:
                    node.set("font-weight", found["weight"])
        elif name != "font-family":  # the page has its own
            node.set(name, value)
    if node.tag.endswith("}text") and not any(c.startswith("f-") for c in classes):
        classes.append("f-ink")
    if classes:
        node.set("class", " ".join(classes))
    title = titles.get(node.get("id", ""))
    if title is not None:
        element = ET.Element(f"{{{SVG}}}title")
        element.text = legal(title)
        node.insert(0, element)
    for name, value in list(node.attrib.items()):
        if name == "id":
            value = f"{prefix}-{value}"
        elif name == f"{{{XLINK}}}href":
            value = f"#{prefix}-{value[1:]}"
        else:
            value = _REFERENCE.sub(lambda m: f"url(#{prefix}-{m[1]})", value)
            value = _NUMBER.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value)
        node.set(name, value)
    node.text = node.text.strip() if node.text and not node.text.strip() else node.text
    node.tail = None if node.tail and not node.tail.strip() else node.tail
