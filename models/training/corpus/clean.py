"""Cleaners: the text of one file of a source, without its mark-up.

Each takes (path, text) and returns a Document, or None for a file that is no document.  FORMATS
names them as sources.json does.
"""
import html
import re
from dataclasses import dataclass


@dataclass
class Document:
    title: str
    author: str
    year: int | None
    text: str


def squeeze(text):
    """No blank ends of lines, no more than one blank line, no invisible characters."""
    text = text.replace("\0", " ").replace("\u00a0", " ")
    text = text.replace("\u200b", "").replace("\u00ad", "")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def year_in(text):
    found = re.search(r"\b(1[0-9]{3}|20\d\d)\b", text or "")
    return int(found.group(1)) if found else None


CLASSIC_HEAD = re.compile(r"\s*#+ *Title: *(.*?)\s*\n+#+ *Author: *(.*?)\s*\n+"
                          r"(?:#+ *Year: *(.*?)\s*\n+)?\s*(?:-{3,}\s*\n)?")
CLASSIC_STEPS = [(re.compile(pattern, flags), new) for pattern, flags, new in [
    (r"<!--.*?-->", re.S, ""),
    (r"!\[[^\]]*\]\([^)]*\)", 0, ""),
    (r"\[([^\]]*)\]\([^)]*\)", 0, r"\1"),
    (r"</?[a-zA-Z][^>\n]{0,80}>", 0, "")]]
CLASSIC_STEPS_PLAIN = [(re.compile(pattern, flags), new) for pattern, flags, new in [
    (r"^#{1,6} *", re.M, ""),
    (r"^\s*([-*_] ?){3,}\s*$", re.M, "* * *"),
    (r"(?<!\w)_+([^_\n]+?)_+(?!\w)", 0, r"\1"),
    (r"\*{1,3}([^*\n]+?)\*{1,3}", 0, r"\1"),
    (r"\\([\\`*_{}\[\]()#+\-.!>~|])", 0, r"\1"),
    (r"^>+ ?", re.M, ""),
    (r" +", 0, " ")]]


def apply(steps, text):
    for pattern, new in steps:
        text = pattern.sub(new, text)
    return text


def classic(path, text):
    """Books in Markdown, one folder an author."""
    if "/" not in path:
        return None
    author, title = path.split("/", 1)
    head, year = CLASSIC_HEAD.match(text), None
    if head:
        text = text[head.end():]
        year = year_in(head.group(3))
    text = apply(CLASSIC_STEPS_PLAIN, html.unescape(apply(CLASSIC_STEPS, text)))
    if head:
        text = f"{head.group(1)}\nby {head.group(2)}\n\n{text}"
    return Document(title.removesuffix(".md").strip(), author, year, squeeze(text))


SHORT_LINE = 58  # a shorter line ends its paragraph where lines are wrapped at about 70


def wrapped(path, text):
    """Novels whose lines are wrapped and whose paragraphs have no blank line between them."""
    paragraphs, current = [], ""
    for line in map(str.strip, text.split("\n")):
        if line:
            current = f"{current} {line}" if current else line
        if current and len(line) < SHORT_LINE:
            paragraphs.append(current)
            current = ""
    paragraphs.append(current)
    text = squeeze(re.sub(r" +", " ", "\n\n".join(paragraphs)))
    return Document(path, "", year_in(path.rpartition("_")[2]), text)


def unwrapped(path, text):
    """Novels with one line a paragraph."""
    return Document(path, "", None, squeeze(re.sub(r" +", " ", text)))


GUTENBERG_START = re.compile(r"\*\*\*\s*START OF TH.*?\*\*\*", re.S)
GUTENBERG_END = re.compile(r"\*\*\*\s*END OF TH|End of (the )?Project Gutenberg", re.I)


def gutenberg(path, text):
    """Plain texts with blank lines between wrapped paragraphs, with or without a frame."""
    start = GUTENBERG_START.search(text)
    if start:
        text = text[start.end():]
    end = GUTENBERG_END.search(text)
    if end:
        text = text[:end.start()]
    paragraphs = re.split(r"\n\s*\n", text)
    paragraphs = [" ".join(p.split()) for p in paragraphs if "Gutenberg" not in p]
    text = re.sub(r"(?<!\w)_+([^_\n]+?)_+(?!\w)", r"\1", "\n\n".join(paragraphs))
    return Document(path, "", None, squeeze(text))


def strip_tags(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def first_of(tag, text):
    found = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.S)
    return strip_tags(found.group(1)) if found else ""


def surname_last(name):
    name = re.sub(r"\s*\(.*", "", name)
    last, _, first = name.partition(",")
    return f"{first.strip()} {last.strip()}".strip() if first else name


def tei(path, text):
    """Novels in TEI."""
    title = re.sub(r"\s*:? *ELTeC edition.*", "", first_of("title", text), flags=re.I).strip()
    author = surname_last(first_of("author", text))
    body = text[text.find("<body"):text.rfind("</body>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"<(note|pb|gap|ref|milestone)\b[^>]*/>", " ", body)
    body = re.sub(r"<note\b.*?</note>", " ", body, flags=re.S)
    parts = re.finditer(r"<(p|head|l|trailer)\b[^>]*>(.*?)</\1>", body, re.S)
    paragraphs = list(filter(None, (strip_tags(part.group(2)) for part in parts)))
    text = f"{title}\nby {author}\n\n" + "\n\n".join(paragraphs)
    return Document(title or path, author, None, squeeze(text))


def cnxml(path, text):
    """A section of a textbook in CNXML."""
    body = text[text.find("<content>"):text.rfind("</content>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"<(m:math|media|figure|table|exercise|glossary)\b.*?</\1>", " ", body,
                  flags=re.S)
    parts = re.finditer(r"<(para|title|item)\b[^>]*>(.*?)</\1>", body, re.S)
    paragraphs = list(filter(None, (strip_tags(part.group(2)) for part in parts)))
    title = first_of("title", text)
    return Document(title, "", None, squeeze(f"{title}\n\n" + "\n\n".join(paragraphs)))


FRONT_MATTER = re.compile(r"\A(---\n.*?\n---\n|\+\+\+\n.*?\n\+\+\+\n|<!--\{.*?\}-->)", re.S)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.S | re.M)
MARKDOWN_STEPS = [(re.compile(pattern, flags), new) for pattern, flags, new in [
    (r"<!--.*?-->", re.S, ""),
    (r"\{\{[<%].*?[%>]\}\}", re.S, ""),
    (r"\{/\*.*?\*/\}", re.S, ""),
    (r"!\[[^\]]*\]\([^)]*\)", 0, ""),
    (r"\]\((https?://[^)\s]{60,}|data:[^)]*)\)", 0, "]"),
    (r"^\[[^\]]+\]: .*$", re.M, ""),
    (r"^> \[!.*\]$|^:::.*$", re.M, ""),
    (r"</?[a-zA-Z][^<>\n]{0,300}>", 0, "")]]


def markdown(path, text):
    """Technical documents.  Code is put aside first: what looks like mark-up there is not."""
    pieces = []

    def put_aside(code):
        pieces.append(code.group(0))
        return f"\1{len(pieces) - 1}\2"

    text = CODE.sub(put_aside, FRONT_MATTER.sub("", text))
    text = html.unescape(apply(MARKDOWN_STEPS, text))
    text = re.sub("\1(\\d+)\2", lambda mark: pieces[int(mark.group(1))], text)
    return Document(path, "", None, squeeze(text))


PEP_HEAD = re.compile(r"\A(?:[A-Z][\w-]*:.*\n(?:[ \t]+.*\n)*)+")


def restructured(path, text):
    """reStructuredText, which reads well as it is; of a PEP's header the telling lines."""
    def telling(head):
        lines = [line for line in head.group(0).split("\n")
                 if re.match(r"(PEP|Title|Status|Type):", line)]
        return "\n".join(lines) + "\n\n"
    return Document(path, "", None, squeeze(PEP_HEAD.sub(telling, text)))


FORMATS = {cleaner.__name__: cleaner for cleaner in (
    classic, wrapped, unwrapped, gutenberg, tei, cnxml, markdown, restructured)}
