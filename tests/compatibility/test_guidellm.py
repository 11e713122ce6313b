"""guidellm: a short benchmark by both of OpenAI's routes.  It brings torch, so it is not among the
requirements: the command is looked for in PATH.

    python3 -m venv build/venv-guidellm && build/venv-guidellm/bin/python -m pip install guidellm==0.8.1
"""
import json
import os
import shutil
import subprocess

import pytest

from conftest import MODEL
from server import ROOT

N_REQUESTS = 6
GUIDELLM = shutil.which("guidellm", path=os.pathsep.join(
    [str(ROOT / "build/venv-guidellm/bin"), os.environ.get("PATH", "")]))


@pytest.mark.skipif(not GUIDELLM, reason="guidellm is not installed: see this file's first lines")
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_a_benchmark_runs(server, tmp_path, route):
    report = tmp_path / "report.json"
    done = subprocess.run(
        [GUIDELLM, "run", "--disable-progress",
         "--backend", f"kind=openai_http,target={server.url},api_key=secret,model={MODEL},request_format={route}",
         "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={N_REQUESTS}",
         "--tokenizer", f"kind=huggingface_auto,model={ROOT / 'models/quire-31m'}",
         "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
         "--output", f"kind=json,path={report}"],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(report.read_text())["benchmarks"]
    requests = found["requests"]
    assert len(requests["successful"]) == N_REQUESTS and not requests["errored"]
    for one in requests["successful"]:
        assert one["output_metrics"]["text_tokens"] > 0
