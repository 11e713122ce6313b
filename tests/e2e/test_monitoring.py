"""config/monitoring: promtool accepts the rules and tries them, and every query of rules and dashboard
asks for metrics and labels that a server really has."""
import json
import re
import subprocess

import pytest

from server import ROOT, Server

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
    assert done.returncode == 0 and "SUCCESS: 17 rules" in done.stdout, done.stdout + done.stderr


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
    assert len(alerts) == 10
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
