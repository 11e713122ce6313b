"""`quire tune`: a search from start to end, stopped and gone on with, and its files served."""
import itertools
import json
import re
import subprocess
import time

import pytest
from random_model import write_random_model
from server import BINARY, DEVICE, LONG, MODEL, N_THREADS, PATIENCE, WRAPPER

N_LAYERS, N_HEADS = 1, 2  # of the tiny model, which has no layer to spare for filters
N_DEEP = 7  # layers of the one that has
ALL = range(N_DEEP)
WIDE = (1, 2, 4, 6)  # where the others have windows


def command(model, *flags):
    return [*WRAPPER, BINARY, "tune", str(model), "--device", DEVICE, "--threads", str(N_THREADS),
            *flags]


def tune(model, directory, *flags):
    return subprocess.run(command(model, *flags), cwd=directory, text=True, capture_output=True,
                          timeout=120 * PATIENCE)


def test_a_search_writes_a_pattern_file_that_is_served(tiny_model, tmp_path, serve):
    out = tmp_path / f"{tiny_model.name}.json"
    # What was measured elsewhere stays.
    out.write_text(json.dumps({"format": "quire-patterns-1", "layers": [{}] * N_LAYERS,
                               "min_sparse_tokens": {"abacus": 600, DEVICE: 1}}))
    done = tune(tiny_model, tmp_path, "--lengths", "1024,2048", "--samples", "2", "--seed", "7")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["format"] == "quire-patterns-1"
    assert found["min_sparse_tokens"].pop("abacus") == 600
    assert [least >= 1024 for least in found["min_sparse_tokens"].values()] == [True]
    assert [sorted(layer) for layer in found["layers"]] == [["0", "1"]] * N_LAYERS
    notes = found["provenance"]
    assert notes["objective"].startswith("recall: ")
    assert notes["lengths"] == "1024, 2048" and "seed 7" in notes["prompts"]
    assert notes["break_even"].startswith("prompts by tokens, dense and sparse: ")
    rows = done.stdout.splitlines()
    assert rows[0].startswith("layer,head,pattern,p1,p2,mean_recall,worst_recall")
    assert len(rows) == 1 + N_LAYERS * N_HEADS
    for row in rows[1:]:
        layer, head, pattern, p1, p2, mean, worst, *_ = row.split(",")
        entry = found["layers"][int(layer)][head]
        assert entry[:3] == [pattern, int(p1), int(p2)]
        assert abs(entry[3] - float(mean)) < 1e-3 and float(worst) <= float(mean) + 1e-4
    assert not (tmp_path / f"{tiny_model.name}.json.state").exists()
    server = serve(str(tiny_model), "--pattern-file", str(out))
    assert server.get("/health").status == 200
    assert out.name in server.log and "(measured on this backend)" in server.log


FLOPS = ("--find", "patterns", "--objective", "flops", "--budget", "0.3", "--floor", "0.01",
         "--lengths", "1024,2048", "--out", "out.json")


def heads_of(rows):
    """layer, head, pattern, p1, p2 as they are, and the density."""
    return [(row.split(",")[:5], float(row.split(",")[7])) for row in rows[1:]]


def test_a_search_of_equal_flops(tiny_model, tmp_path):
    """Every head has a pattern that was sized to the budget, however long it took; nothing depends
    on time, so another search finds the same."""
    found = []
    for _ in range(2):
        done = tune(tiny_model, tmp_path, *FLOPS, "--samples", "1")
        assert done.returncode == 0, done.stderr
        assert "stream_llm 1024 4096, fitted, on every head" in done.stderr
        assert re.findall("a floor of (.*) are", done.stderr) == ["0.01"]
        heads = heads_of(done.stdout.splitlines())
        assert [pattern for (_, _, pattern, _, _), _ in heads if pattern == "dense"] == []
        file = json.loads((tmp_path / "out.json").read_text())
        notes = file["provenance"]
        assert notes["objective"].startswith("flops: ")
        assert "at most 0.3 of the" in notes["objective"] and "2048 tokens" in notes["objective"]
        for (layer, head, *pattern), _ in heads:
            assert [str(cell) for cell in file["layers"][int(layer)][head][:3]] == pattern
        found.append(heads)
    assert found[0] == found[1]
    done = tune(tiny_model, tmp_path, *FLOPS, "--lengths", "2048", "--samples", "1")
    for _, density in heads_of(done.stdout.splitlines()):
        assert 0.2 < density <= 0.3  # of the prompt that it was sized by
    done = tune(tiny_model, tmp_path, "--find", "patterns", "--lengths", "1024", "--samples", "1")
    assert done.returncode == 0 and "fitted" not in done.stderr
    file = json.loads((tmp_path / f"{tiny_model.name}.json").read_text())
    assert file["provenance"]["objective"].startswith("recall: ")


def test_a_search_of_equal_flops_goes_on(tiny_model, tmp_path):
    flops = (*FLOPS, "--samples", "6")
    state = tmp_path / "out.json.state"
    stop_at(tiny_model, tmp_path, state, 2, '"sample"', *flops)
    for other in (("--objective", "recall"), ("--budget", "0.4")):
        done = tune(tiny_model, tmp_path, *flops, *other)
        assert done.returncode == 1 and "belongs to another search" in done.stderr, other

    # What the second run takes from the file shows in what it finds: only A-shapes fitted.
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    (at,) = [i for i, line in enumerate(lines) if "fitted" in line]
    assert at < min(i for i, line in enumerate(lines) if "sample" in line)
    n = len(lines[at]["p1"])
    lines[at] |= {"p1": [[77] * N_HEADS] + [[0] * N_HEADS] * (n - 1),
                  "p2": [[99] * N_HEADS] + [[0] * N_HEADS] * (n - 1)}
    state.write_text("".join(json.dumps(line) + "\n" for line in lines[:at + 1]))
    done = tune(tiny_model, tmp_path, *flops)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["layers"]
    assert [entry[:3] for layer in found for entry in layer.values()] == [
        ["stream_llm", 77, 99]] * (N_LAYERS * N_HEADS)


def wait_for(process, state, n, word):
    deadline = time.monotonic() + 60 * PATIENCE
    while not state.exists() or state.read_text().count(word) < n:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def stop_at(model, directory, state, n, word, *flags, written=False):
    """Runs a search until its state has n of the word.  written: the patterns are in the file by then."""
    with subprocess.Popen(command(model, *flags), cwd=directory, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        wait_for(process, state, n, word)
        process.kill()
    assert process.returncode != 0 and (directory / "out.json").exists() == written


def test_a_search_that_was_stopped_goes_on(tiny_model, tmp_path):
    flags = ("--lengths", "1024", "--samples", "12", "--out", "out.json")
    state = tmp_path / "out.json.state"
    stop_at(tiny_model, tmp_path, state, 3, "\n", *flags)

    # What the second run takes from the file shows in what it finds: nothing was recalled.
    lines = state.read_text().splitlines()
    first = json.loads(lines[1])
    first["recall"] = [[0.0] * N_HEADS for _ in first["recall"]]
    lines[1] = json.dumps(first)
    state.write_text("\n".join(lines) + "\n" + '{"sample": 1, "lay')
    done = tune(tiny_model, tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["layers"] == [{"0": ["dense", 0, 0, 1.0], "1": ["dense", 0, 0, 1.0]}]
    # Nothing is left out, so nothing can be faster.
    assert "every head is dense" in found["provenance"]["break_even"]
    assert found["min_sparse_tokens"] == {DEVICE: 2**32 - 1}
    assert not state.exists()


LADDER = ("--lengths", "1024,2048", "--samples", "20", "--out", "out.json")


def write_results(model, directory, state):
    """A state in which all layers are measured, and sparse attention costs next to nothing."""
    stop_at(model, directory, state, 2, "\n", *LADDER)
    head, first = (json.loads(line) for line in state.read_text().splitlines()[:2])
    first["dense_s"] = 1000.0
    first["recall"] = [[1.0] * N_HEADS for _ in first["recall"]]
    lines = [head] + [{**first, "sample": i} for i in range(40)]
    state.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_ladder_goes_on_with_rungs_of_its_own(tiny_model, tmp_path):
    state = tmp_path / "out.json.state"
    write_results(tiny_model, tmp_path, state)
    stop_at(tiny_model, tmp_path, state, 1, '"patterns"', *LADDER, written=True)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["min_sparse_tokens"] == {} and len(written["layers"]) == N_LAYERS
    assert "has not come so far" in written["provenance"]["break_even"]
    assert "at least 0.8; found" in written["provenance"]["recall"]
    *lines, rung = (json.loads(line) for line in state.read_text().splitlines())
    assert rung["n_tokens"] == 1024
    rung["dense_s"] = 12345.0
    stopped = "".join(json.dumps(line) + "\n" for line in [*lines, rung])
    for flags, is_taken in (("--dense-tail", "0"), False), ((), True):
        state.write_text(stopped)
        done = tune(tiny_model, tmp_path, *LADDER, *flags)
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "out.json").read_text())
        rungs = found["provenance"]["break_even"]
        assert "dense and sparse: 1024: " in rungs
        assert "4096: " not in rungs  # --lengths has no prompts of that length
        assert ("1024: 1.234e+04 and" in rungs) == is_taken, rungs


def test_a_ladder_without_memory_says_so(tiny_model, tmp_path):
    state = tmp_path / "out.json.state"
    write_results(tiny_model, tmp_path, state)
    done = tune(tiny_model, tmp_path, *LADDER, "--kv-cache-memory", "65536")
    assert done.returncode == 1
    assert "break-even, prompts of up to 2048 tokens: the KV cache holds" in done.stderr
    assert state.read_text().count("\n") == 41  # nothing that was measured is lost


TEXT = (MODEL / "eval" / "held_out.txt").read_text()


@pytest.mark.parametrize("flags, words", [
    ((), "perplexity of 3 windows of 1024 tokens: "),
    (("--text", "short.txt"), "not measured: there is no held-out text of this length"),
    (("--text", "long.txt"), "perplexity of 3 windows of 1024 tokens: "),
])
def test_the_file_says_what_its_patterns_lose(tiny_model, tmp_path, flags, words):
    (tmp_path / "short.txt").write_text("a few words of text")
    (tmp_path / "long.txt").write_text(TEXT[:40_000])
    done = tune(tiny_model, tmp_path, *FLOPS, "--lengths", "1024", "--samples", "1", *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["provenance"]["held_out"].startswith(words)
    assert words in done.stderr
    if "not" in words:
        assert "perplexity" not in found
        return
    # Random weights make of any text what a uniform choice makes of it: nearly nothing is lost.
    measured = found["perplexity"]
    assert 1 < measured["dense"] < 1e5 and abs(measured["sparse"] / measured["dense"] - 1) < 0.2
    assert f'{measured["dense"]:.2f} dense' in found["provenance"]["held_out"]


def test_the_floor_is_raised_until_little_is_lost(tmp_path):
    """In 1,024 tokens a budget of 0.3 is few keys, and loses much of the default model's text: heads
    that find little of their attention are made dense, more with each floor."""
    flags = ("--find", "patterns", "--objective", "flops", "--budget", "0.3", "--lengths", "1024",
             "--samples", "1", "--out", "out.json", "--floor")
    done = tune(MODEL, tmp_path, *flags, "0")
    assert done.returncode == 0, done.stderr
    file = json.loads((tmp_path / "out.json").read_text())
    floors = re.findall(r"the patterns with a floor of ([\d.]+) are in", done.stderr)
    losses = [float(lost) for lost in re.findall(r"they lose (-?[\d.]+) of perplexity", done.stderr)]
    assert floors == ["0.8", "0.9", "0.95", "0.98"][:len(floors)] and len(floors) == len(losses) > 1
    assert all(lost > 0.2 for lost in losses[:-1]) and losses[-1] < losses[0] / 2
    assert losses[-1] <= 0.2 or len(floors) == 4  # the last one counts, and auto does not take it
    assert abs(file["perplexity"]["sparse"] - file["perplexity"]["dense"] - losses[-1]) < 0.01
    # The others would have recalled too little.
    recalls = [float(row.split(",")[5]) for row in done.stdout.splitlines()[1:] if ",dense," not in row]
    assert recalls and min(recalls) >= float(floors[-1])
    if not LONG:
        return
    (tmp_path / "out.json").unlink()
    done = tune(MODEL, tmp_path, *flags, "0.8")  # a floor that is asked for is the only one
    assert done.stderr.count("the patterns with a floor of") == 1
    assert f"they lose {losses[0]:.2f} of perplexity" in done.stderr


def test_auto_takes_patterns_that_lose_little(tiny_model, tmp_path, serve):
    """The bound is 0.2 of perplexity; a file without figures is taken, and a setting that asks wins."""
    ids = list(range(100, 1400))
    for perplexity, flags, mode in (
            (None, (), "sparse"),
            ({"dense": 40.0, "sparse": 40.19}, (), "sparse"),
            ({"dense": 40.0, "sparse": 39.0}, (), "sparse"),
            ({"dense": 40.0, "sparse": 40.21}, (), "dense"),
            ({"dense": 40.57, "sparse": 41.36}, (), "dense"),
            ({"dense": 40.57, "sparse": 41.36}, ("--min-sparse-tokens", "1024"), "sparse")):
        content = {"format": "quire-patterns-1", "min_sparse_tokens": {DEVICE: 1024},
                   "layers": [{str(h): ["stream_llm", 64, 64, 1] for h in range(N_HEADS)}]}
        if perplexity:
            content["perplexity"] = perplexity
        (tmp_path / "file.json").write_text(json.dumps(content))
        server = serve(str(tiny_model), "--pattern-file", str(tmp_path / "file.json"), *flags)
        answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1}).json()
        assert answer["usage"]["prefill"]["mode"] == mode, (perplexity, flags)
        assert ("of perplexity on held-out text, and 0.2 is allowed" in server.log) == (
            mode == "dense")
        # A request that asks for it gets it.
        asked = server.post("/v1/completions", {"prompt": [7, *ids], "max_tokens": 1,
                                                "prefill": "sparse"}).json()
        assert asked["usage"]["prefill"]["mode"] == "sparse"


@pytest.mark.parametrize("perplexity", [{"dense": 3}, {"dense": 3, "sparse": "4"}, [], 7,
                                        {"dense": 0, "sparse": 1}])
def test_a_files_loss_must_be_two_numbers(tiny_model, tmp_path, perplexity):
    (tmp_path / "out.json").write_text(json.dumps({
        "format": "quire-patterns-1", "layers": [{}] * N_LAYERS, "perplexity": perplexity}))
    done = tune(tiny_model, tmp_path, "--lengths", "1024", "--out", "out.json")
    assert done.returncode == 1
    assert "'perplexity' needs the numbers 'dense' and 'sparse'" in done.stderr


def test_another_searchs_state_is_refused(tiny_model, tmp_path):
    state = tmp_path / "mine"
    state.write_text('{"format": "quire-tune-1", "settings": "other"}\n')
    done = tune(tiny_model, tmp_path, "--lengths", "1024", "--state", "mine")
    assert done.returncode == 1 and "mine belongs to another search" in done.stderr
    assert state.exists()


def test_a_file_that_is_none_is_not_written_over(tiny_model, tmp_path):
    (tmp_path / "out.json").write_text("[{}, {}, {}]")
    done = tune(tiny_model, tmp_path, "--lengths", "1024", "--out", "out.json")
    assert done.returncode == 1 and "patterns of 3 layers" in done.stderr
    assert (tmp_path / "out.json").read_text() == "[{}, {}, {}]"


def test_wrong_flags_are_refused(tiny_model, tmp_path):
    for flags, status, why in (
            (("--lengths", "8192"), 1, "context of 4096 tokens"),
            (("--lengths", "256"), 1, "too short for sparse patterns"),
            (("--lengths", "1024,x"), 2, "--lengths"),
            (("--samples", "65"), 2, "--samples"),
            (("--lengths", "1024,2048", "--samples", "33"), 2, "at most 64 prompts"),
            (("--recall", "2"), 2, "--recall"),
            (("--objective", "time"), 2, "--objective"),
            (("--budget", "1"), 2, "--budget"),
            (("--find", "words"), 2, "--find"),
            (("--find", "filters"), 1, "too few layers"),
            (("--max-filters", "5"), 2, "--max-filters"),
            (("--nonsense",), 2, "--nonsense")):
        done = tune(tiny_model, tmp_path, *flags)
        assert done.returncode == status and why in done.stderr, (flags, done.stderr)
    assert list(tmp_path.iterdir()) == []


# ---- filters ----

@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("deep"), 4096, num_hidden_layers=N_DEEP)


@pytest.fixture(scope="module")
def windowed_model(tmp_path_factory):
    kinds = ["full_attention" if i in WIDE else "sliding_attention" for i in ALL]
    return write_random_model(tmp_path_factory.mktemp("windowed"), 4096, num_hidden_layers=N_DEEP,
                              architectures=["MistralForCausalLM"], model_type="mistral",
                              sliding_window=200, layer_types=kinds)


def matrix_of(rows, wide=ALL):
    header, *lines = [row.split(",") for row in rows]
    assert header == ["filter"] + [str(j) for j in range(N_DEEP)]
    assert [line[0] for line in lines] == [str(i) for i in range(N_DEEP)]
    matrix = [[float(cell) if cell else None for cell in line[1:]] for line in lines]
    for i, line in enumerate(matrix):
        assert [cell is None for cell in line] == [j < i or not {i, j} <= {*wide} for j in ALL]
        assert all(0 < cell < 1 for cell in line if cell is not None)
    return matrix


def sparse_layers(filters, wide=ALL):
    return {j: f for f, end in zip(filters, [*filters[1:], N_DEEP]) for j in range(f + 2, end)
            if j in wide}


def lost(matrix, filters, wide=ALL):
    return sum(1 - matrix[f][j] for j, f in sparse_layers(filters, wide).items())


def least_lost(matrix, n_filters, n_dense, wide):
    return min(lost(matrix, filters, wide)
               for n in range(1, n_filters + 1)
               for filters in itertools.combinations(wide, n)
               # Each has layers that follow it.
               if set(sparse_layers(filters, wide).values()) == set(filters)
               and len(wide) - n_dense <= len(sparse_layers(filters, wide)))


def shortlist_of(provenance):
    """(filters, share of the answers, loss) of the choice and of those behind it, in this order."""
    sets = [provenance["choice"]]
    if provenance["next best"] != "none":
        sets += provenance["next best"].split("; ")
    pattern = r"([\d, ]+): ([\d.]+) of the answers, .* \(lost: ([\d.-]+)\)"
    return [([int(layer) for layer in layers.split(", ")], float(kept), float(loss))
            for layers, kept, loss in (re.fullmatch(pattern, text).groups() for text in sets)]


def check_filters(path, matrix, n_filters, n_dense, wide=ALL):
    found = json.loads(path.read_text())
    assert found["format"] == "quire-filters-1" and found["wait"] == 1
    assert len(found["filters"]) <= n_filters
    assert len(wide) - len(sparse_layers(found["filters"], wide)) <= n_dense
    # Sets of least loss were tried; of those the one whose answers are most like those without.
    # The matrix is printed with four digits.
    shortlist = shortlist_of(found["provenance"])
    for filters, _, loss in shortlist:
        assert abs(lost(matrix, filters, wide) - loss) < 2e-3
    assert abs(min(loss for *_, loss in shortlist) -
               least_lost(matrix, n_filters, n_dense, wide)) < 2e-3
    worth = [(-kept, -len(sparse_layers(filters, wide)), loss)
             for filters, kept, loss in shortlist]
    assert worth == sorted(worth)
    assert shortlist[0][0] == found["filters"]
    assert all(0 <= kept <= 1 for _, kept, _ in shortlist)
    return found


def test_a_search_writes_a_filters_file_that_is_served(deep_model, tmp_path, serve):
    out = tmp_path / f"{deep_model.name}.filters.json"
    done = tune(deep_model, tmp_path, "--find", "filters", "--lengths", "1024,2048",
                "--samples", "2", "--max-filters", "2", "--dense-layers", "4")
    assert done.returncode == 0, done.stderr
    found = check_filters(out, matrix_of(done.stdout.splitlines()), 2, 4)
    assert found["provenance"]["lengths"] == "1024, 2048"
    assert "next best: filters" in done.stderr and found["provenance"]["next best"] != "none"
    assert list(tmp_path.iterdir()) == [out]
    server = serve(str(deep_model), "--filters-file", str(out))
    assert out.name in json.dumps(server.get("/v1/models").json())


def test_one_search_finds_both(deep_model, tmp_path):
    done = tune(deep_model, tmp_path, "--lengths", "1024", "--samples", "1")
    assert done.returncode == 0, done.stderr
    heads, matrix = done.stdout.split("\n\n")
    assert heads.startswith("layer,head,") and heads.count("\n") == 4 * N_DEEP
    check_filters(tmp_path / f"{deep_model.name}.filters.json", matrix_of(matrix.splitlines()),
                  3, 6)
    assert json.loads((tmp_path / f"{deep_model.name}.json").read_text())["layers"]
    assert len(list(tmp_path.iterdir())) == 2


def test_layers_with_a_window_are_neither_filters_nor_sparse(windowed_model, tmp_path, serve):
    """And in sparse prompts they are dense, so nothing is found for their heads, however little of
    attention is asked for."""
    out = tmp_path / f"{windowed_model.name}.filters.json"
    done = tune(windowed_model, tmp_path, "--lengths", "1024", "--samples", "2", "--recall", "0.1",
                "--floor", "0.01", "--max-filters", "2", "--dense-layers", "3")
    assert done.returncode == 0, done.stderr
    heads, matrix = done.stdout.split("\n\n")
    rows = [row.split(",") for row in heads.splitlines()[1:]]
    assert {row[2] for row in rows if int(row[0]) not in WIDE} == {"dense"}
    found = check_filters(out, matrix_of(matrix.splitlines(), WIDE), 2, 3, WIDE)
    patterns = tmp_path / f"{windowed_model.name}.json"
    server = serve(str(windowed_model), "--filters-file", str(out), "--pattern-file", str(patterns))
    layers = server.get("/v1/models").json()["data"][0]["offload"]["layers"]
    assert layers["filter"] == found["filters"]
    assert layers["sparse"] == list(sparse_layers(found["filters"], WIDE))
    assert layers["windowed"] == [i for i in ALL if i not in WIDE]


def test_nothing_is_sought_where_all_layers_have_a_window(tmp_path):
    for kinds, flags, why in (
            (["sliding_attention"] * 3, (), "every layer of this model has a window"),
            (["full_attention", "sliding_attention", "sliding_attention"], ("--find", "filters"),
             "too few layers of the model have no window")):
        model = write_random_model(tmp_path / kinds[0], 4096, num_hidden_layers=3,
                                   architectures=["MistralForCausalLM"], model_type="mistral",
                                   sliding_window=200, layer_types=kinds)
        done = tune(model, tmp_path, "--lengths", "1024", *flags)
        assert done.returncode == 1 and why in done.stderr, done.stderr


def test_a_comparison_that_was_stopped_goes_on(deep_model, tmp_path):
    flags = ("--find", "filters", "--lengths", "1024", "--samples", "20", "--filters-out", "out",
             "--max-filters", "1", "--dense-layers", "5")
    state = tmp_path / "out.state"
    stop_at(deep_model, tmp_path, state, 2, '"similarity"', *flags)
    assert not (tmp_path / "out").exists()

    # What the second run takes from the file shows in what it finds.
    lines = state.read_text().splitlines()
    first = json.loads(lines[1])
    first["similarity"][3] = [1000.0] * N_DEEP
    lines[1] = json.dumps(first)
    state.write_text("\n".join(lines) + "\n" + '{"compared": 1, "simil')
    done = tune(deep_model, tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    shortlist = shortlist_of(json.loads((tmp_path / "out").read_text())["provenance"])
    assert min(shortlist, key=lambda row: row[2])[0] == [3]
    assert not state.exists()


def test_filters_that_cannot_be_sought_are_refused(deep_model, tmp_path):
    for flags, why in ((("--selected", "1000"), "too short to choose 1024 tokens"),
                       (("--dense-layers", "1"), "at least 2 for one filter")):
        done = tune(deep_model, tmp_path, "--find", "filters", "--lengths", "1024", *flags)
        assert done.returncode == 1 and why in done.stderr, (flags, done.stderr)
    assert not list(tmp_path.glob("*.json"))
