"""What MkDocs is told beside mkdocs.yml: pages from all over the repository, and docstrings as we write them.

The site has README.md as its first page, ``docs/*.md`` beside it, and ``results/`` below it. Links are written so that
they work in the repository; here they are made to fit the site, and those to files that it lacks become plain text.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

import latex2mathml.converter
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

LOG = logging.getLogger("mkdocs.hooks")
ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
ROLE = re.compile(r":(class|func|meth|mod|data|attr):<code>~?([\w.]+)</code>")
MATH = re.compile(r":math:`([^`]+)`|^\.\. math:: (.+)$", re.MULTILINE)


def sources() -> dict[str, str]:
    """Files that do not lie in the site's own folder: place in the site -> place in the repository."""
    found = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
    found.update({path.name: f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))})
    for path in sorted((ROOT / "results").rglob("*")):
        if path.is_file():
            place = path.relative_to(ROOT).as_posix()
            found[place] = place
    return found


def on_files(files, config):
    """Add them."""
    for place, source in sources().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links between files of the repository become links between pages."""
    sites = sources()
    places, here = {source: place for place, source in sites.items()}, sites.get(page.file.src_uri)
    if here is None:
        return markdown

    def link(match):
        mark, text, target = match.groups()
        path, hash_mark, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        source = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        if source not in places:
            if not (ROOT / source).exists():
                LOG.warning("%s: no such file: %s", here, target)
            return text
        place = posixpath.relpath(places[source], posixpath.dirname(page.file.src_uri) or ".")
        return f"{mark}[{text}]({place}{hash_mark}{anchor})"

    return LINK.sub(link, markdown)


class Formulas(Preprocessor):
    """``:math:`` of docstrings, inside a line and as a paragraph, becomes MathML."""

    def run(self, lines):
        """Replace them by placeholders, which Markdown leaves alone."""

        def formula(match):
            inline, block = match.groups()
            kind = "inline" if inline else "block"
            tex = (inline or block).replace(r"\arg\max", r"\mathrm{arg\,max}")  # unknown to latex2mathml
            return self.md.htmlStash.store(latex2mathml.converter.convert(tex, display=kind))

        return MATH.sub(formula, "\n".join(lines)).split("\n")


class FormulasExtension(Extension):
    """The same, as Markdown wants it."""

    def extendMarkdown(self, md):
        """Before everything else."""
        md.preprocessors.register(Formulas(md), "formulas", 5)


def on_config(config):
    """Pages of docs/ that the navigation doesn't name are put to the others that say how to do something."""
    config.markdown_extensions.append(FormulasExtension())
    named = repr(config.nav)
    how_to = next(entry["How to"] for entry in config.nav if "How to" in entry)
    how_to.extend(path.name for path in sorted((ROOT / "docs").glob("*.md")) if f"'{path.name}'" not in named)
    return config


def on_page_content(html, page, config, files):
    """Sphinx's roles in docstrings become code, and tables scroll by themselves."""
    html = ROLE.sub(lambda match: f"<code>{match[2].rsplit('.', 1)[-1]}</code>", html)
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
