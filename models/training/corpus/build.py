#!/usr/bin/env python3
"""Builds the training text from the sources of sources.json.

    python -m corpus.build --out DIR [--mirrors DIR] [--only OWNER/NAME ...]

DIR gets books.txt and documents.txt (documents with a NUL byte between them), held_out.txt (the
whole books that are never trained on, one file) and held_out.json, and manifest.json: documents,
bytes and digests, by source and in all.  The same sources give the same bytes.
"""
import argparse
import hashlib
import json
import multiprocessing
import pathlib
import sys
import time

from . import clean, overlap, repositories

HERE = pathlib.Path(__file__).resolve().parent.parent
SHORTEST = {"books": 4000, "documents": 300}  # characters
MOST_FOREIGN = 0.15  # of the characters of a text in English
SEPARATOR = "\0"


def read_source(task):
    """All documents of one source, cleaned; in a process of its own."""
    source, mirrors, clones = task
    directory = repositories.locate(source["repository"], source["commit"], mirrors, clones)
    cleaner, documents = clean.FORMATS[source["format"]], []
    for path, text in repositories.files(directory, source["commit"], source["paths"]):
        document = cleaner(path, text)
        if document is not None:
            documents.append(document)
    return documents


class Corpus:
    def __init__(self, settings):
        self.held_out_names = [tuple(pair) for pair in settings["held_out"]]
        self.books_until = settings["books_until"]
        self.texts = {"books": [], "documents": []}
        self.held_out, self.rows = {}, []
        self.known_books, self.paragraphs = None, overlap.Paragraphs()

    def take_held_out(self, documents):
        """Puts the held-out books aside; they are in the first source."""
        for document in documents:
            name = (document.author, document.title)
            if name in self.held_out_names:
                self.held_out[name] = document
        missing = [name for name in self.held_out_names if name not in self.held_out]
        if missing:
            raise SystemExit(f"corpus: these held-out books are not in the first source: {missing}")
        self.known_books = overlap.Books([d.text for d in self.held_out.values()])

    def refuse_book(self, document):
        if (document.author, document.title) in self.held_out:
            return "held out"
        if document.year is not None and document.year > self.books_until:
            return "too recent"
        return self.known_books.refuse(document.text)

    def add_books(self, documents):
        refused, kept = {}, []
        for document in documents:
            if len(document.text) < SHORTEST["books"]:
                continue
            reason = self.refuse_book(document)
            if reason:
                refused[reason] = refused.get(reason, 0) + 1
            else:
                kept.append(document.text)
        return kept, refused

    def add_documents(self, documents, source):
        kept, pages = [], ""
        documents = sorted(documents, key=lambda d: hashlib.sha1(d.title.encode()).digest())
        room = source.get("most_mb", 1e9) * 1e6
        for document in documents:
            text = clean.squeeze(self.paragraphs.clean(document.text))
            foreign = sum(ord(c) > 0x2ff for c in text)
            if len(text) < SHORTEST["documents"] or foreign > MOST_FOREIGN * len(text):
                continue
            pages += text
            if len(pages) < source.get("join_characters", 0):  # short pages make one document
                pages += "\n"
                continue
            if len(pages.encode()) <= room:
                room -= len(pages.encode())
                kept.append(pages)
            pages = ""
        return kept, {}

    def add(self, source, documents):
        if source["kind"] == "books":
            kept, refused = self.add_books(documents)
        else:
            kept, refused = self.add_documents(documents, source)
        self.texts[source["kind"]] += kept
        n_bytes = sum(len(text.encode()) for text in kept)
        self.rows.append({**source, "documents": len(kept), "bytes": n_bytes, "refused": refused})
        print(f"corpus: {source['repository']}: {len(kept)} of {len(documents)} documents, "
              f"{n_bytes / 1e6:.1f} MB {refused or ''}", file=sys.stderr)


def write_text(path, texts):
    data = SEPARATOR.join(texts).encode()
    path.write_bytes(data)
    return {"documents": len(texts), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write(corpus, out):
    manifest = {"sources": corpus.rows}
    for kind, texts in corpus.texts.items():
        manifest[kind] = write_text(out / f"{kind}.txt", texts)
    held = [corpus.held_out[name] for name in corpus.held_out_names]
    manifest["held_out"] = write_text(out / "held_out.txt", [book.text for book in held])
    books = [{"author": b.author.strip("."), "title": b.title, "year": b.year} for b in held]
    (out / "held_out.json").write_text(json.dumps(books, indent=1) + "\n")
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--mirrors", type=repositories.path_of,
                        help="folder of git mirrors, each named owner+name")
    parser.add_argument("--only", nargs="*", metavar="OWNER/NAME",
                        help="these sources only, and the first, which has the held-out books")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    settings = json.loads((HERE / "sources.json").read_text())
    first, *others = settings["sources"]
    if options.only is not None:
        others = [source for source in others if source["repository"] in options.only]
    sources, started = [first, *others], time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = [(source, options.mirrors, options.out / "clones") for source in sources]
    corpus = Corpus(settings)
    with multiprocessing.Pool(options.jobs) as pool:
        for source, documents in zip(sources, pool.imap(read_source, tasks)):
            if source is first:
                corpus.take_held_out(documents)
            corpus.add(source, documents)
    manifest = write(corpus, options.out)
    for kind in ("books", "documents", "held_out"):
        print(f"corpus: {kind}: {manifest[kind]['documents']} documents, "
              f"{manifest[kind]['bytes'] / 1e6:.1f} MB", file=sys.stderr)
    print(f"corpus: {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
