"""Checks the built site for what the builder's strict mode does not see: missing files, images and anchors, and
anything that a page would load from another host.

    python docs/check_links.py site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(values.get("href", ""))
        if tag in ("img", "script", "iframe", "source", "video") and "src" in values:
            self.loads.append(values["src"])


def check(site: Path) -> list[str]:
    """All that is wrong with the links of a site, one line each."""
    site = site.resolve()
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    wrong = [] if site / "index.html" in pages else [f"{site} holds no built site"]
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to wherever it is shown
            continue
        here = path.relative_to(site)
        for link in dict.fromkeys(page.links + page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    wrong.append(f"{here}: loads {link} from another host")
                continue
            target = path
            if parts.path:
                start = site if parts.path.startswith("/") else path.parent
                target = (start / unquote(parts.path).lstrip("/")).resolve()
            if target.is_dir():
                target = target / "index.html"
            anchor = unquote(parts.fragment)
            if not target.is_file():
                wrong.append(f"{here}: {link} does not exist")
            elif anchor and target in pages and anchor not in pages[target].ids | {"__top"}:
                wrong.append(f"{here}: {link} has no such anchor")
    return wrong


def main() -> None:
    wrong = check(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} broken links")
    print("All links lead somewhere.")


if __name__ == "__main__":
    main()
