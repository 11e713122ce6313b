"""The manifests of config/deploy: programs accept them, and every flag, port, path and metric that
they name is the program's."""
import copy
import ipaddress
import json
import os
import re
import subprocess

import pytest
import yaml

from server import BINARY, ROOT, free_port

DEPLOY = ROOT / "config" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PORT = 8000


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind):
    found = [one for path in sorted(KUBERNETES.glob("*.yaml")) for one in documents(path)
             if one["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


@pytest.fixture(scope="module")
def container():
    return of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(scope="module")
def paths(server):
    return json.loads(server.get("/openapi.json").body)["paths"]


@pytest.fixture(scope="module")
def metrics(server):
    return set(re.findall(r"^# TYPE (\S+)", server.get("/metrics").body.decode(), re.M))


def flags():
    text = subprocess.run([BINARY, "serve", "--help-all"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  (--[a-z-]+)", text.stdout, re.M))


def test_kubernetes_has_every_manifest():
    assert {one["kind"] for path in KUBERNETES.glob("*.yaml") for one in documents(path)} == {
        "Deployment", "Service", "InferencePool", "HTTPRoute", "ScaledObject"}


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_kubernetes_accepts_its_own_kinds(kind):
    """The other kinds belong to extensions, whose schemas no package carries."""
    import kubernetes_validate

    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(of_kind(kind), newest, strict=True)
    wrong = copy.deepcopy(of_kind(kind))
    wrong["spec"]["selectors"] = wrong["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, newest, strict=True)


def test_probes_ask_routes_that_need_no_key(container, paths):
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in paths and asked["port"] == "http"
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def kubelet_variables(service, address, port):
    """What a kubelet sets for a Service with one named port, and for the API server."""
    name = service.upper().replace("-", "_")
    link = f"{name}_PORT_{port}_TCP"
    return {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(port),
            f"{name}_SERVICE_PORT_HTTP": str(port), f"{name}_PORT": f"tcp://{address}:{port}",
            link: f"tcp://{address}:{port}", f"{link}_PROTO": "tcp", f"{link}_PORT": str(port),
            f"{link}_ADDR": address}


def test_a_service_of_the_same_name_does_no_harm(serve):
    services = {"kubernetes": 443, "quire": of_kind("Service")["spec"]["ports"][0]["port"],
                "quire-kv-events": 5557, "quire-host": 80}
    variables = {}
    for name, port in services.items():
        variables |= kubelet_variables(name, "10.96.0.11", port)
    server = serve(env=variables)
    assert server.get("/ready").status == 200
    warnings = [line for line in server.log.splitlines() if " warn " in line]
    assert len(warnings) == 1 and "QUIRE_PORT=tcp://10.96.0.11:80 is ignored" in warnings[0]
    done = subprocess.run([BINARY, "health", "--port", str(server.port)], env=variables,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert of_kind("Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_one_port_everywhere(container):
    assert container["ports"] == [{"name": "http", "containerPort": PORT}]
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] == "http"
    assert of_kind("InferencePool")["spec"]["targetPorts"] == [{"number": PORT}]
    template = of_kind("Deployment")["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(PORT)
    assert template["labels"]["model.aibrix.ai/port"] == str(PORT)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"EXPOSE {PORT}" in dockerfile and f"QUIRE_PORT={PORT}" in dockerfile
    scraped, = documents(ROOT / "config/monitoring/prometheus.yml")[0]["scrape_configs"]
    assert scraped["static_configs"][0]["targets"] == [f"replica-a:{PORT}", f"replica-b:{PORT}"]
    assert re.findall(r"server (\S+)", (DEPLOY / "nginx.conf").read_text())[:2] == [
        f"replica-a:{PORT}", f"replica-b:{PORT}"]


def test_everything_selects_the_same_pods():
    labels = {"app": "quire"}
    template = of_kind("Deployment")["spec"]["template"]["metadata"]
    assert labels.items() <= template["labels"].items()
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("Service")["spec"]["selector"] == labels
    assert of_kind("InferencePool")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("ScaledObject")["spec"]["scaleTargetRef"]["name"] == "quire"


def test_flags_are_the_programs(container):
    named = {word for word in container["args"] if word.startswith("--")}
    for path in [*DEPLOY.rglob("*.*"), ROOT / "config/monitoring/prometheus.yml"]:
        if path.is_file():
            named |= set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)+", path.read_text()))
    assert named and named <= flags(), named - flags()


def test_the_grace_periods_are_longer_than_the_servers(container):
    given = container["args"][container["args"].index("--shutdown-timeout") + 1]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    seconds = of_kind("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert seconds >= int(given) + before + 8 + 5  # 8: saving the cache
    unit = (DEPLOY / "quire.service").read_text()
    assert int(re.search(r"^TimeoutStopSec=(\d+)", unit, re.M)[1]) >= 30 + 8 + 5
    compose, = documents(DEPLOY / "compose.yaml")
    assert compose["x-replica"]["stop_grace_period"] == "45s"


def test_autoscaling_reads_metrics_that_the_server_has(metrics):
    queries = [trigger["metadata"]["query"] for trigger in of_kind("ScaledObject")["spec"]["triggers"]]
    named = {name for query in queries for name in re.findall(r"[a-z_]+:[a-z_]+", query)}
    assert len(named) == 2 and named <= metrics, named - metrics


def test_compose_mounts_files_that_exist():
    compose, = documents(DEPLOY / "compose.yaml")
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), (name, source)
    build = compose["x-replica"]["build"]
    assert (DEPLOY / build["context"] / "Dockerfile").exists()
    assert f"AS {build['target']}" in (ROOT / "Dockerfile").read_text()
    for given in compose["configs"].values():
        assert yaml.safe_load(given["content"])["apiVersion"] == 1


def test_replicas_keep_their_addresses_in_compose():
    """nginx would go on asking the former ones."""
    compose, = documents(DEPLOY / "compose.yaml")
    pool, = compose["networks"]["default"]["ipam"]["config"]
    names = re.findall(r"server ([\w-]+):", (DEPLOY / "nginx.conf").read_text())[:2]
    addresses = {compose["services"][name]["networks"]["default"]["ipv4_address"] for name in names}
    assert len(addresses) == len(names) == 2
    assert all(ipaddress.ip_address(one) in ipaddress.ip_network(pool["subnet"]) for one in addresses)


def test_systemd_accepts_the_unit(tmp_path):
    unit = (DEPLOY / "quire.service").read_text()
    path = tmp_path / "quire.service"
    path.write_text(unit.replace("/usr/bin/quire", f'"{BINARY}"'))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0 and "quire.service" not in done.stderr, done.stderr


def test_nginx_accepts_its_configuration(tmp_path):
    text = (DEPLOY / "nginx.conf").read_text()
    text = re.sub(r"replica-[ab]:\d+", f"127.0.0.1:{free_port()}", text, count=1)
    text = re.sub(r"replica-[ab]:\d+", f"127.0.0.1:{free_port()}", text, count=1)
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\n{text}")
    done = subprocess.run(["nginx", "-t", "-p", tmp_path, "-e", tmp_path / "error.log",
                           "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[warn]" not in done.stderr, done.stderr


def test_a_release_runs_scripts_of_the_tree():
    jobs, = documents(ROOT / ".github/workflows/release.yml")
    commands = [step["run"] for job in jobs["jobs"].values() for step in job["steps"] if "run" in step]
    named = {word for command in commands for word in re.findall(r"scripts/[\w/]+", command)}
    assert {"scripts/package", "scripts/ci/check_package", "scripts/ci/check_image"} <= named
    for script in named:
        assert os.access(ROOT / script, os.X_OK), script


def test_a_tag_is_that_of_the_version():
    version = subprocess.run([BINARY, "version"], capture_output=True, text=True, check=True).stdout.split(",")[0].split()[1]
    wrong = subprocess.run([ROOT / "scripts/ci/check_tag", "v99.0.0"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and f"meson.build has the version {version}" in wrong.stderr
    right = subprocess.run([ROOT / "scripts/ci/check_tag", f"v{version}"], capture_output=True, text=True, check=False)
    assert "meson.build" not in right.stderr  # CHANGELOG.md gets its date with the release
