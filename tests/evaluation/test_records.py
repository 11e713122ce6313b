"""results.jsonl survives being cut anywhere, and does not mix two evaluations."""
import pytest

from evaluation.records import Mismatch, Records

RUN = {"seed": 1, "model": "tiny", "template": "raw", "books": "b", "book_tokens": None,
       "bucket": 1024, "configs": {"a": {}}}


def sample(index, question=0):
    return {"kind": "sample", "config": "a", "task": "t", "length": 10, "index": index,
            "question": question, "error": None}


def write(directory, *lines):
    records = Records(directory)
    records.begin(RUN)
    for line in lines:
        records.append(line)
    records.close()


def test_what_was_appended_is_there_again(tmp_path):
    write(tmp_path, sample(0), sample(0, 1), sample(2))
    records = Records(tmp_path)
    assert sorted(records.questions("sample", "a", "t", 10, 0)) == [0, 1]
    assert records.questions("sample", "a", "t", 10, 1) == {}
    records.close()


def test_a_torn_last_line_is_forgotten_wherever_it_was_cut(tmp_path):
    write(tmp_path, sample(0), sample(1))
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    begin = whole.index(b"\n", whole.index(b"\n") + 1) + 1  # of the last line
    for size in range(begin, len(whole)):
        path.write_bytes(whole[:size])
        records = Records(tmp_path)
        assert not records.questions("sample", "a", "t", 10, 1)
        records.append(sample(1))
        records.close()
        assert path.read_bytes() == whole


def test_a_line_torn_in_the_middle_is_an_error(tmp_path):
    write(tmp_path, sample(0))
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"kind": "ru\n' + path.read_bytes())
    with pytest.raises(Mismatch, match="line 1"):
        Records(tmp_path)


@pytest.mark.parametrize("name, value", [("seed", 2), ("model", "other"), ("template", "chatml"),
                                         ("books", "c"), ("book_tokens", "t"), ("bucket", 512),
                                         ("configs", {"a": {"prefill": "x"}})])
def test_another_evaluation_is_refused(tmp_path, name, value):
    write(tmp_path, sample(0))
    before = (tmp_path / "results.jsonl").read_bytes()
    records = Records(tmp_path)
    with pytest.raises(Mismatch, match="--out"):
        records.begin({**RUN, name: value})
    records.close()
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_more_configurations_may_be_added(tmp_path):
    write(tmp_path)
    records = Records(tmp_path)
    records.begin({**RUN, "configs": {"a": {}, "b": {"prefill": "x"}}})
    records.close()


def test_two_evaluations_cannot_write_at_once(tmp_path):
    first = Records(tmp_path)
    with pytest.raises(Mismatch, match="another evaluation"):
        Records(tmp_path)
    first.close()
    Records(tmp_path).close()
