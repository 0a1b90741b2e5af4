"""Self-contained HTML files, without scripts."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content-Security-Policy: the file loads nothing, and markup in texts does nothing."""
STYLE = """
:root { color-scheme: light dark; --faint: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--faint); }
"""


def document(title: str, style: str, body: str) -> str:
    """Return the HTML of a page; `style` is added to STYLE."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def elements(tag: str, texts: Iterable[object]) -> str:
    """Return an element for each text, which is escaped."""
    return "".join(f"<{tag}>{escape(str(text))}</{tag}>" for text in texts)


def table(heads: Sequence[str], rows: Iterable[str]) -> str:
    """Return a table of rows in HTML."""
    body = "\n".join(rows)
    head = f"<thead><tr>{elements('th', heads)}</tr></thead>\n" if heads else ""
    return f"<table>\n{head}<tbody>\n{body}\n</tbody>\n</table>"


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all. Raises InvalidRequest if it cannot be."""
    # the pages themselves need no other package
    from foreword.files import atomic_file, check_writable, room

    check_writable(file)
    with room(file), atomic_file(file) as partial:
        partial.write_text(text, encoding="utf-8")
