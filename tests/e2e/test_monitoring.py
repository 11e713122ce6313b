"""config/monitoring: promtool accepts the rules and tries them, every query of rules and dashboard asks for
metrics and labels that a server really has, and Prometheus itself answers them when it watches two.  The log's lines
of throughput."""
import concurrent.futures
import http.client
import json
import re
import subprocess
import time
import urllib.parse

import pytest

from server import DEVICE, PATIENCE, ROOT, Server, free_port

FOLDER = ROOT / "config" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
NAME = re.compile(r"\b[a-zA-Z_][a-zA-Z0-9_]*:?[a-zA-Z0-9_:]*\b")
# What Prometheus itself adds to a sample.
GIVEN_LABELS = {"instance", "job", "le"}
GIVEN_METRICS = {"up"}


def promtool(*arguments):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)


def rules():
    """(name, expression) of each rule, as far as this test needs YAML."""
    found, name = [], None
    lines = iter((FOLDER / "rules.yml").read_text().splitlines())
    for line in lines:
        entry = re.match(r"\s+- (record|alert): (\S+)", line)
        if entry:
            name = entry[2]
        expression = re.match(r"(\s+)expr: (.*)", line)
        if expression:
            text = expression[2]
            if text == ">-":
                text = " ".join((next(lines).strip(), next(lines).strip()))
            found.append((name, text))
    return found


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_queries():
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The labels of each metric that a server has, by name."""
    with Server(tmp_path_factory.mktemp("monitoring"), "--kv-offload-size", "64M") as server:
        server.complete("warm", max_tokens=2)
        labels = {}
        for line in server.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, rest = re.fullmatch(r"([a-zA-Z0-9_:]+)(.*)", line).groups()
                labels.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', rest))
        return labels


def metrics_of(query):
    """The metrics that a query names: what is followed by braces, a range, or stands in a sum."""
    bare = re.sub(r'\{[^}]*\}|\[[^]]*\]|"[^"]*"', " ", query)
    bare = re.sub(r"\b(by|without|on)\s*\([^)]*\)", " ", bare)
    return {name for name in NAME.findall(bare)
            if re.match(r"(quire|vllm|http|up\b)", name)}


def labels_of(query):
    selected = re.findall(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"', query)
    grouped = [name.strip() for names in re.findall(r"\bby\s*\(([^)]*)\)", query)
               for name in names.split(",")]
    return set(selected) | set(grouped)


def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", FOLDER / "rules.yml")
    assert done.returncode == 0 and "SUCCESS: 18 rules" in done.stdout, done.stdout + done.stderr


def test_the_rules_fire_when_they_should_and_only_then():
    done = promtool("test", "rules", FOLDER / "rules_test.yml")
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_promtool_notices_a_rule_that_never_fires(tmp_path):
    """The test above can fail."""
    text = (FOLDER / "rules.yml").read_text()
    assert "rate(quire_steps_total[5m]) == 0" in text
    (tmp_path / "rules.yml").write_text(text.replace("[5m]) == 0", "[5m]) < 0"))
    (tmp_path / "rules_test.yml").write_text((FOLDER / "rules_test.yml").read_text())
    done = promtool("test", "rules", tmp_path / "rules_test.yml")
    assert done.returncode != 0 and "QuireStuck" in done.stdout + done.stderr


def test_every_alert_is_tried_both_ways():
    tests = (FOLDER / "rules_test.yml").read_text()
    alerts = [name for name, _ in rules() if name.startswith("Quire")]
    assert len(alerts) == 11
    for name in alerts:
        assert f"alertname: {name}}}" in tests, name
        assert f'alertname="{name}"' in tests, name


def test_promtool_parses_every_query_of_the_dashboard(tmp_path):
    file = tmp_path / "queries.yml"
    queries = [query.replace("$__rate_interval", "5m") for _, query in dashboard_queries()]
    file.write_text("groups:\n- name: dashboard\n  rules:\n" + "".join(
        f"  - {{record: 'query:{i}', expr: {json.dumps(query)}}}\n"
        for i, query in enumerate(queries)))
    done = promtool("check", "rules", file)
    assert done.returncode == 0 and f"{len(queries)} rules" in done.stdout, done.stderr


@pytest.mark.parametrize("where, query", dashboard_queries() + rules())
def test_a_query_asks_for_what_is_served(served, where, query):
    recorded = {name for name, _ in rules()}
    names = metrics_of(query)
    assert names, (where, query)
    known = set(GIVEN_LABELS)
    for name in names - recorded - GIVEN_METRICS:
        assert name in served, (where, name)
        known |= served[name]
    assert labels_of(query) <= known, (where, query)


def test_the_dashboard_is_whole():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["targets"] and panel["title"], panel
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
    boxes = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for i, a in enumerate(boxes):
        assert a["x"] + a["w"] <= 24
        for b in boxes[:i]:
            apart = (a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
                     or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])
            assert apart, (a, b)


class Prometheus:
    """Prometheus with prometheus.yml and its rules, which watches these servers; only its times are shorter."""

    def __init__(self, folder, servers):
        self.port = free_port()
        config = (FOLDER / "prometheus.yml").read_text()
        for line, faster in ((r"scrape_interval: 5s", "scrape_interval: 250ms"),
                             (r"evaluation_interval: 15s", "evaluation_interval: 250ms"),
                             ('"replica-a:8000", "replica-b:8000"',
                              ", ".join(f'"127.0.0.1:{server.port}"' for server in servers))):
            assert config.count(line) == 1
            config = config.replace(line, faster)
        (folder / "prometheus.yml").write_text(config)
        (folder / "rules.yml").write_text((FOLDER / "rules.yml").read_text())
        self.log = folder / "prometheus.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
                stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30 * PATIENCE)

    def ask(self, path, **arguments):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10 * PATIENCE)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(arguments)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, query):
        return self.ask("query", query=query)["result"]

    def wait(self, holds, what):
        deadline = time.monotonic() + 60 * PATIENCE
        while True:
            assert self.process.poll() is None and time.monotonic() < deadline, (
                what, self.log.read_text()[-4000:])
            try:
                if holds():
                    return
            except (OSError, json.JSONDecodeError):
                pass  # it does not listen yet, or only says that it is not ready
            time.sleep(0.05)


def everything(server):
    """Requests of every kind that the dashboard has a panel for."""
    for _ in range(2):
        server.complete([300 + i for i in range(1200)], max_tokens=8, ignore_eos=True,
                        kv_policy={"type": "offload", "selected": 128, "tail": 64})
        server.complete([900 + i for i in range(400)], max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Prometheus when it has seen requests of every kind on two servers, and evaluated its rules since."""
    folder = tmp_path_factory.mktemp("watched")
    settings = "--kv-offload-size", "64M", "--prefill", "sparse"
    with Server(folder, *settings) as one, Server(folder, *settings) as other, \
            Prometheus(folder, (one, other)) as prometheus:
        prometheus.wait(lambda: len(prometheus.series("quire_ready == 1")) == 2, "both are seen")
        everything(one)
        everything(other)
        prometheus.wait(lambda: len(prometheus.series("quire:generated_tokens:rate5m > 0")) == 2,
                        "the rules are evaluated")
        yield prometheus


def test_prometheus_reaches_every_target(watched):
    """A scrape of a busy machine may be late: another is not."""
    def told():
        return [(t["health"], t["lastError"], t["scrapePool"]) for t in watched.ask("targets")["activeTargets"]]

    watched.wait(lambda: told() == 2 * [("up", "", "quire")], told())


def test_prometheus_evaluates_every_rule(watched):
    """No alert fires; on a busy machine one may be pending."""
    def found():
        return [rule for group in watched.ask("rules")["groups"] for rule in group["rules"]]

    assert sorted(rule["name"] for rule in found()) == sorted(name for name, _ in rules())
    watched.wait(lambda: all(rule["health"] != "unknown" for rule in found()), "each rule is evaluated")
    assert {(rule["health"], rule.get("lastError", "")) for rule in found()} == {("ok", "")}
    assert [rule["name"] for rule in found() if rule.get("state") == "firing"] == []


@pytest.mark.skipif(DEVICE != "cpu", reason="the answers are the same")
@pytest.mark.parametrize("where, query", dashboard_queries() + [
    (name, name) for name, _ in rules() if name.startswith("quire:")])
def test_prometheus_has_series_for_each_query(watched, where, query):
    query = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
    assert "$" not in query
    result = watched.series(query)
    assert result, (where, query)
    assert all(one["value"][1] != "NaN" for one in result), (where, result)


def ask_and_wait(directory, model):
    """The lines of throughput of two windows of ten seconds, one with work, and the metrics then."""
    with Server(directory, model=model) as server:
        prompt = [3 + i % 50 for i in range(150)]
        for _ in range(2):
            server.complete(prompt, max_tokens=20, ignore_eos=True)
        server.wait_logged("throughput ", seconds=60)
        time.sleep(11)
        lines = [line for line in server.log.splitlines() if " throughput " in line]
        return lines, server.metrics()


@pytest.fixture(scope="module", autouse=True)
def throughput(tmp_path_factory, tiny_model):
    """It waits while the tests above run, which wait for Prometheus."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        yield thread.submit(ask_and_wait, tmp_path_factory.mktemp("throughput"), tiny_model)


def test_a_line_of_throughput_when_there_was_work(throughput):
    """One window with work has a line whose numbers are those of the work; one without has none."""
    lines, m = throughput.result()
    assert len(lines) == 1, lines
    told = dict(pair.split("=") for pair in lines[0].split(" throughput ")[1].split())
    # 300 tokens of prompts, two blocks of 64 of them found in the cache, in ten seconds; in more where a busy
    # machine runs the server late.
    prompt_rate, rate = float(told["prompt_tokens_per_s"]), float(told["generated_tokens_per_s"])
    assert 172 / 60 < prompt_rate < 172 / 9.5
    assert abs(prompt_rate / 172 - rate / 40) < 0.1 / 40
    assert told["hit_rate"] == f"{128 / 300:.3f}"
    assert (told["running"], told["waiting"], told["kv_use"]) == ("0", "0", "0.000")
    assert m["quire_generated_tokens_per_second"] == 0
