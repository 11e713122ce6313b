"""results.jsonl: one JSON object a line, appended and synced, so that a run that is killed loses
nothing that it had, and a second run goes on where the first stopped.

    {"kind": "run", ...}         the first line of each invocation
    {"kind": "sample", ...}      one answer
    {"kind": "stream", ...}      one answer within a stream
    {"kind": "perplexity", ...}  one window
    {"kind": "ignored", ...}     what became of a configuration's fields; the last one counts
"""
import fcntl
import json
import os

# What must be equal for two invocations to write into the same file.  The books' tokens stand for
# the tokenizer: with another one samples are filled and windows are cut in other places.
SAME = ("version", "seed", "model", "template", "books", "book_tokens", "bucket")
VERSION = 1


class Mismatch(ValueError):
    """The file holds another evaluation."""


def read_lines(data):
    """(records, how many bytes they take).  A last line that was torn is left out."""
    records, size = [], 0
    for line in data.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n"):
                break
            records.append(json.loads(line))
        except ValueError:
            if size + len(line) < len(data):
                raise Mismatch(f"line {len(records) + 1} of results.jsonl is no JSON") from None
            break
        size += len(line)
    return records, size


def unit_of(record):
    """What a record is a part of: the questions of one sample under one configuration, or one
    stream, whose records have lengths of their own."""
    length = None if record["kind"] == "stream" else record["length"]
    return record["kind"], record["config"], record["task"], length, record["index"]


class Records:
    """The file of one evaluation, held alone.  Memory: every record of it."""

    def __init__(self, directory):
        os.makedirs(directory, exist_ok=True)
        self._file = open(os.path.join(directory, "results.jsonl"), "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Mismatch(f"another evaluation is writing to {directory}") from None
        self._file.seek(0)
        self.all, size = read_lines(self._file.read())
        self._file.truncate(size)
        self._units = {}
        for record in self.all:
            self._index(record)

    def close(self):
        self._file.close()

    def _index(self, record):
        if "config" in record and "index" in record:
            self._units.setdefault(unit_of(record), {})[record["question"]] = record

    def begin(self, run):
        """Adds the line of this invocation, after comparing it with the earlier ones."""
        run = {"kind": "run", "version": VERSION, **run}
        for old in (r for r in self.all if r["kind"] == "run"):
            for name in SAME:
                if (was := old.get(name)) != run[name]:
                    raise Mismatch(f"the results there were made with {name} {was!r}, not "
                                   f"{run[name]!r}: name another --out")
            for name, fields in run["configs"].items():
                if old["configs"].get(name, fields) != fields:
                    raise Mismatch(f"the configuration {name} was {old['configs'][name]} there, "
                                   f"not {fields}: name another --out")
        self.append(run)

    def append(self, record):
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.all.append(record)
        self._index(record)

    def questions(self, kind, config, task, length, index):
        """What is there of one unit: {question: record}."""
        return self._units.get((kind, config, task, length, index), {})

    def of(self, config):
        """All measured records of a configuration, by unit."""
        return {unit: questions for unit, questions in self._units.items() if unit[1] == config}
