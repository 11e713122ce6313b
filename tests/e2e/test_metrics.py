"""/metrics as routers, autoscalers and dashboards read it: names, types, labels and buckets as their
protocols and sources have them, values that follow the load, and promtool's judgement."""
import collections
import contextlib
import re
import shutil
import subprocess

import pytest

from raw import RawConnection
from server import ROOT, Server

# What a router reads is written here by name, as its own documents do: the list in the server must
# not be its own judge.
GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
# Gateway API Inference Extension (model server protocol), and llm-d's router.
GATEWAY = {"vllm:num_requests_waiting": GAUGE, "vllm:num_requests_running": GAUGE,
           "vllm:kv_cache_usage_perc": GAUGE, "vllm:cache_config_info": GAUGE}
# vLLM's production stack: two of today's names, and old ones.
PRODUCTION_STACK = {"vllm:num_requests_running": GAUGE, "vllm:num_requests_waiting": GAUGE,
                    "vllm:gpu_cache_usage_perc": GAUGE, "vllm:gpu_prefix_cache_hit_rate": GAUGE,
                    "vllm:gpu_prefix_cache_hits_total": COUNTER,
                    "vllm:gpu_prefix_cache_queries_total": COUNTER}
AIBRIX = {"vllm:num_requests_running": GAUGE, "vllm:num_requests_waiting": GAUGE,
          "vllm:num_requests_swapped": GAUGE, "vllm:kv_cache_usage_perc": GAUGE,
          "vllm:gpu_cache_usage_perc": GAUGE,
          **{f"vllm:{name}_seconds": HISTOGRAM for name in (
              "time_to_first_token", "time_per_output_token", "inter_token_latency",
              "e2e_request_latency", "request_queue_time", "request_inference_time",
              "request_prefill_time", "request_decode_time")},
          "vllm:prompt_tokens_total": COUNTER, "vllm:generation_tokens_total": COUNTER,
          "vllm:request_prompt_tokens": HISTOGRAM, "vllm:request_generation_tokens": HISTOGRAM,
          "vllm:prefix_cache_queries_total": COUNTER, "vllm:prefix_cache_hits_total": COUNTER,
          "vllm:avg_prompt_throughput_toks_per_s": GAUGE,
          "vllm:avg_generation_throughput_toks_per_s": GAUGE,
          "vllm:request_success_total": COUNTER}
# vLLM's own dashboards.
VLLM = {"vllm:num_requests_waiting_by_reason": GAUGE, "vllm:model_weights_memory_bytes": GAUGE,
        "vllm:num_preemptions_total": COUNTER, "vllm:prompt_tokens_by_source_total": COUNTER,
        "vllm:prompt_tokens_cached_total": COUNTER, "vllm:admission_rejections_total": COUNTER,
        "vllm:corrupted_requests_total": COUNTER,
        "vllm:request_time_per_output_token_seconds": HISTOGRAM,
        "vllm:request_max_num_generation_tokens": HISTOGRAM,
        "vllm:request_params_n": HISTOGRAM, "vllm:request_params_max_tokens": HISTOGRAM,
        "vllm:iteration_tokens_total": HISTOGRAM,
        "http_requests_total": COUNTER, "http_request_duration_seconds": HISTOGRAM}
READERS = {"gateway": GATEWAY, "production_stack": PRODUCTION_STACK, "aibrix": AIBRIX, "vllm": VLLM}

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')

Family = collections.namedtuple("Family", "type help samples")


def read(text):
    """Families by name; a sample is (name, labels, value).  Anything that is not in the format
    fails."""
    families = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, words = line[len("# HELP "):].split(" ", 1)
            assert name not in families and words, line
            families[name] = Family([], words, [])
        elif line.startswith("# TYPE "):
            name, kind = line[len("# TYPE "):].split(" ")
            families[name].type.append(kind)
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert "".join(f'{k}="{v}",' for k, v in LABEL.findall(labels or "")).rstrip(",") == (
                labels or ""), line
            family = next(n for n in (name, re.sub("_(bucket|sum|count)$", "", name))
                          if n in families)
            families[family].samples.append((name, dict(LABEL.findall(labels or "")), float(value)))
    for name, family in families.items():
        assert len(family.type) == 1, name
    return families


MODEL_LEN = 4096


@pytest.fixture(scope="module")
def quire(tmp_path_factory, small_model):
    with Server(tmp_path_factory.mktemp("metrics"), "--served-model-name", 'my "model"\\7',
                "--max-num-seqs", 2, "--max-num-queued-reqs", 2,
                "--max-model-len", MODEL_LEN, "--kv-cache-memory", "128M",
                model=small_model) as server:
        server.complete("warm", max_tokens=2)
        yield server


def scrape(server):
    reply = server.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(reply.body.decode())


def value(families, name, **labels):
    """The one sample with these labels among its own."""
    family = next(f for n, f in families.items()
                  if n == name or (name.startswith(n) and f.type == [HISTOGRAM]))
    found = [v for n, given, v in family.samples
             if n == name and labels.items() <= given.items()]
    assert len(found) == 1, (name, labels, family.samples)
    return found[0]


@pytest.mark.parametrize("reader", READERS)
def test_names_and_types_are_those_that_routers_read(quire, reader):
    quire.complete("warm", max_tokens=2)
    families = scrape(quire)
    for name, kind in READERS[reader].items():
        assert families[name].type == [kind], name
        assert families[name].samples, name
        if name.startswith("vllm:"):
            for _, labels, _ in families[name].samples:
                assert labels["model_name"] == r'my \"model\"\\7' and labels["engine"] == "0"


def test_histograms_are_cumulative_and_reach_2560_seconds(quire):
    quire.complete("warm", max_tokens=3, ignore_eos=True)
    for name, family in scrape(quire).items():
        if family.type != [HISTOGRAM]:
            continue
        series = collections.defaultdict(dict)
        for sample, labels, number in family.samples:
            rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
            series[rest][labels.get("le", sample[len(name):])] = number
        for parts in series.values():
            total, _ = parts.pop("_count"), parts.pop("_sum")
            bounds = list(map(float, parts))
            assert bounds == sorted(bounds) and list(parts)[-1] == "+Inf", name
            counts = list(parts.values())
            assert counts == sorted(counts) and counts[-1] == total, name
            assert not name.endswith("_seconds") or 2560 in bounds, name


def test_nothing_runs_waits_or_uses_pages_at_rest(tmp_path):
    with Server(tmp_path) as server:
        server.wait_idle()
        families = scrape(server)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:num_requests_swapped", "vllm:kv_cache_usage_perc",
                     "vllm:gpu_cache_usage_perc", "vllm:prompt_tokens_total",
                     "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
                     "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
                     "vllm:time_to_first_token_seconds_count",
                     "vllm:e2e_request_latency_seconds_count"):
            assert value(families, name) == 0, name
        for reason in ("stop", "length", "abort", "error"):
            assert value(families, "vllm:request_success_total", finished_reason=reason) == 0


def test_the_cache_is_described_in_blocks(quire):
    families = scrape(quire)
    (_, labels, one), = families["vllm:cache_config_info"].samples
    assert one == 1 and labels["block_size"] == "64"
    log = re.search(r"\((\d+) tokens in (\d+) pages\)", quire.log)
    assert int(labels["num_gpu_blocks"]) == int(log[1]) // 64
    assert labels["enable_prefix_caching"] == "True"
    assert value(families, "quire_kv_pages_total") == int(log[2])
    assert value(families, "vllm:model_weights_memory_bytes") > 1 << 20


def test_counts_of_one_request(quire):
    """A request of 200 tokens, then the same: the second finds three blocks of 64."""
    prompt = [7 * i % 1000 + 100 for i in range(200)]
    quire.wait_idle()
    before = scrape(quire)
    for _ in range(2):
        quire.complete(prompt, max_tokens=5, ignore_eos=True)
    after = scrape(quire)

    def grew(name, **labels):
        return value(after, name, **labels) - value(before, name, **labels)

    assert grew("vllm:prompt_tokens_total") == 400
    assert grew("vllm:generation_tokens_total") == 10
    for name in ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"):
        assert grew(name) == 400
    for name in ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
                 "vllm:prompt_tokens_cached_total", "quire_cached_tokens_total"):
        assert grew(name) == 192, name
    assert grew("vllm:prompt_tokens_by_source_total", source="local_compute") == 208
    assert grew("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 192
    assert 0 < value(after, "vllm:gpu_prefix_cache_hit_rate") < 1
    assert grew("vllm:request_success_total", finished_reason="length") == 2
    assert grew("vllm:request_success_total", finished_reason="stop") == 0
    assert grew("quire_policy_generated_tokens_total", policy="full") == 10
    assert grew("quire_policy_requests_finished_total", policy="full") == 2
    for name, times in {"time_to_first_token": 2, "inter_token_latency": 8,
                        "request_time_per_output_token": 2, "time_per_output_token": 2,
                        "e2e_request_latency": 2, "request_queue_time": 2,
                        "request_prefill_time": 2, "request_decode_time": 2,
                        "request_inference_time": 2}.items():
        assert grew(f"vllm:{name}_seconds_count") == times, name
    assert grew("vllm:request_prompt_tokens_sum") == 400
    assert grew("vllm:request_generation_tokens_sum") == 10
    assert grew("vllm:request_params_max_tokens_sum") == 10
    assert grew("vllm:request_params_n_sum") == 2
    assert grew("vllm:request_max_num_generation_tokens_sum") == 10
    # Each row is a prompt token or a sampled one; the first token of an answer needs no row more.
    assert grew("vllm:iteration_tokens_total_sum") == 208 + 8
    assert grew("http_requests_total", handler="/v1/completions", method="POST", status="2xx") == 2
    # Times fit together.
    whole = grew("vllm:e2e_request_latency_seconds_sum")
    parts = [grew(f"vllm:request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode")]
    assert all(part >= 0 for part in parts) and sum(parts[1:]) > 0
    assert sum(parts) <= whole + 1e-6
    assert abs(grew("vllm:request_inference_time_seconds_sum") - sum(parts[1:])) < 1e-6
    assert grew("vllm:time_to_first_token_seconds_sum") <= whole


def test_a_policy_is_counted_by_its_name(quire):
    before = scrape(quire)
    quire.complete([70 + i for i in range(100)], max_tokens=8, ignore_eos=True,
                   kv_policy={"type": "streaming", "recent": 32})
    after = scrape(quire)
    grown = {policy: value(after, "quire_policy_generated_tokens_total", policy=policy)
             - value(before, "quire_policy_generated_tokens_total", policy=policy)
             for policy in ("full", "streaming")}
    assert grown == {"full": 0, "streaming": 8}


LOAD = {"prompt": [200 + i for i in range(150)], "ignore_eos": True, "temperature": 0}


def test_load_shows(quire):
    """Two run and two wait, for as long as their clients stay; a fifth is refused."""
    quire.wait_idle()
    before = scrape(quire)
    with contextlib.ExitStack() as clients:
        for i in range(4):
            client = clients.enter_context(RawConnection(quire))
            client.send_completion(**LOAD, seed=i, max_tokens=MODEL_LEN - 200, stream=True)
        for metric in ("quire_requests_running", "quire_requests_waiting"):
            quire.wait_for(metric, 2)
        assert quire.post("/v1/completions", {**LOAD, "max_tokens": 1}).status == 429
        loaded = scrape(quire)
    assert value(loaded, "vllm:num_requests_running") == value(loaded, "vllm:num_requests_waiting") == 2
    assert 0 < value(loaded, "vllm:kv_cache_usage_perc") <= 1
    assert value(loaded, "vllm:kv_cache_usage_perc") == value(loaded, "vllm:gpu_cache_usage_perc")
    by_reason = [value(loaded, "vllm:num_requests_waiting_by_reason", reason=reason)
                 for reason in ("capacity", "deferred")]
    assert sum(by_reason) == value(loaded, "vllm:num_requests_waiting")
    assert value(loaded, "quire_policy_requests_running", policy="full") == 2
    refused = [value(f, "vllm:admission_rejections_total", reason="max_num_queued_reqs")
               for f in (before, loaded)]
    assert refused[1] - refused[0] == 1


def test_load_goes(quire):
    """Four that finish, two of which have waited for the two others."""
    quire.wait_idle()
    before = scrape(quire)
    quire.at_once(lambda seed: quire.complete(**LOAD, seed=seed, max_tokens=200), range(4))
    quire.wait_idle()
    after = scrape(quire)
    for name in ("running", "waiting"):
        assert value(after, f"vllm:num_requests_{name}") == 0
    assert value(after, "vllm:kv_cache_usage_perc") == 0
    assert (value(after, "vllm:request_success_total", finished_reason="length")
            - value(before, "vllm:request_success_total", finished_reason="length")) == 4
    queued = [value(f, "vllm:request_queue_time_seconds_sum") for f in (before, after)]
    decoding = [value(f, "vllm:request_decode_time_seconds_sum") for f in (before, after)]
    assert queued[1] - queued[0] > 0.5 * (decoding[1] - decoding[0]) / 4


def test_a_client_that_leaves_is_an_abort(quire):
    quire.wait_idle()
    before = scrape(quire)
    with RawConnection(quire) as client:
        client.send_completion(prompt="go on", max_tokens=4000, ignore_eos=True, stream=True)
        client.read_until(b"data: ")
    quire.wait_idle()
    after = scrape(quire)
    assert (value(after, "vllm:request_success_total", finished_reason="abort")
            - value(before, "vllm:request_success_total", finished_reason="abort")) == 1


def test_clients_make_up_no_labels(quire):
    before = len(scrape(quire)["http_requests_total"].samples)
    for i in range(20):
        quire.get(f"/nowhere/{i}")
        quire.request(f"MADE{i}", "/v1/models")
    families = scrape(quire)
    assert len(families["http_requests_total"].samples) <= before + 2
    assert value(families, "http_requests_total", handler="none", method="GET", status="4xx") >= 20


# The linter's rules that vLLM's own names break, and one of quire's that is older than this test.
EXPECTED = re.compile(r"vllm:\S+ (metric names should not contain ':'"
                      r"|metric names should not contain abbreviated units"
                      r"|non-counter metrics should not have \"_total\" suffix)"
                      r"|quire_kv_pages_total non-counter metrics should not have \"_total\" suffix")


def test_promtool_accepts_the_text(quire):
    assert shutil.which("promtool"), "promtool is missing: Debian's package prometheus has it"
    quire.complete("warm", max_tokens=2, kv_policy={"type": "full"})
    text = quire.get("/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert done.returncode in (0, 3), done.stderr.decode()  # 3: it parses, but the linter complains
    complaints = done.stdout.decode().splitlines() + done.stderr.decode().splitlines()
    assert [line for line in complaints if not EXPECTED.fullmatch(line)] == []
    broken = subprocess.run(["promtool", "check", "metrics"], input=text + b'bad{ 1\n',
                            capture_output=True)
    assert broken.returncode not in (0, 3)


@pytest.mark.parametrize("setting, without_key, with_key", [
    ("auto", 200, 200), ("open", 200, 200), ("required", 401, 200)])
def test_the_key_of_metrics(tmp_path, setting, without_key, with_key):
    """On a loopback address."""
    with Server(tmp_path, "--metrics-key", setting, env={"QUIRE_API_KEY": "k1"}) as server:
        assert server.get("/metrics").status == without_key
        assert server.get("/metrics", headers={"Authorization": "Bearer k1"}).status == with_key
        assert server.get("/v1/models").status == 401


@pytest.mark.parametrize("setting, without_key", [("auto", 401), ("open", 200)])
def test_the_key_of_metrics_on_every_address(tmp_path, setting, without_key):
    with Server(tmp_path, "--host", "0.0.0.0", "--metrics-key", setting,
                env={"QUIRE_API_KEY": "k1"}) as server:
        assert server.get("/metrics").status == without_key
        assert server.get("/metrics", headers={"Authorization": "Bearer k1"}).status == 200


# Only servers with a disk, or with a model that has recurrent layers, have these.
OF_SOME = re.compile(r"quire_(kv_disk|checkpoints|recurrent)")


def test_the_documents_name_metrics_that_there_are(server):
    there = set(re.findall(r"^# TYPE (\S+)", server.get("/metrics").body.decode(), re.MULTILINE))
    named = {name for page in (ROOT / "docs").rglob("*.md")
             for name in re.findall(r"`(quire_[a-z_]+)`", page.read_text()) if not OF_SOME.match(name)}
    assert named - there == set() and len(named) > 40
    assert {name for name in there if name.startswith("quire_responses")} <= named


def test_no_client_fills_the_table_of_routes(serve, small_model):
    """Requests of every method to every route, none of which has a key, leave a row for those that have."""
    server = serve(model=small_model, env={"QUIRE_API_KEY": "k"})
    with_key = {"Authorization": "Bearer k"}
    paths = [path.replace("{id}", "x") for path in server.get("/openapi.json", headers=with_key).json()["paths"]]
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "BREW", "HEAD", "GET"):
        for path in (*paths, "/nowhere"):
            server.request(method, path)
    assert server.post("/v1/completions/render", {"prompt": "a"}, headers=with_key).status == 200
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=with_key)
    counted = {(labels["handler"], labels["method"], labels["status"])
               for _, labels, _ in scrape(server)["http_requests_total"].samples}
    assert {("/v1/completions", "POST", "2xx"), ("/v1/completions/render", "POST", "2xx"),
            ("/v1/responses/{id}", "DELETE", "4xx"), ("none", "other", "4xx")} <= counted
