"""Text of a model that tries to become more than text: Markdown, HTML, SVG, MathML, addresses, entities.
No script may run, no request may leave, and no element or attribute may be there but those of a list."""
import gzip
import http.server
import itertools
import json
import threading
import time

import pytest

from chat import DONE, STUB, delta, end, open_chat, will_answer

RUN = "pwn()"
HTML = [f"<script>{RUN}</script>", f"<img src=x onerror={RUN}>", f"<svg onload={RUN}>", f"<svg><script>{RUN}</script></svg>",
        f"<svg><a xlink:href=javascript:{RUN}><text>x</text></a></svg>", f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
        "<svg><use href='data:image/svg+xml,<svg id=x/>#x'></svg>", f"<svg><foreignObject><img src=x onerror={RUN}></foreignObject></svg>",
        f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}></style></mglyph></table></mtext></math>",
        f"<math href=javascript:{RUN}>x</math>", f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
        "<iframe src=https://evil.example/f></iframe>", f"<object data='data:text/html,<script>parent.{RUN}</script>'></object>",
        "<embed src=https://evil.example/e>", "<base href=https://evil.example/>", "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
        "<link rel=stylesheet href=https://evil.example/c.css>", "<style>@import 'https://evil.example/s.css';</style>",
        "<form action=https://evil.example/><button>x</button></form>", f"<input autofocus onfocus={RUN}>",
        f"<details open ontoggle={RUN}>x</details>", f"<video><source src=x onerror={RUN}></video>", f"<audio src=x onerror={RUN}>",
        f"<body onload={RUN}>", f"<noscript><p title='</noscript><img src=x onerror={RUN}>'></noscript>",
        f"<select autofocus onfocus={RUN}>", f"<marquee onstart={RUN}>x</marquee>", "<picture><source srcset=https://evil.example/p><img></picture>",
        f"<a href='javascript:{RUN}'>x</a>", f"<div style='background:url(https://evil.example/b)' onmouseover={RUN}>x</div>",
        f"<template><img src=x onerror={RUN}></template>", f"<!--><img src=x onerror={RUN}>-->", f"<![CDATA[<img src=x onerror={RUN}>]]>",
        f"<x onclick={RUN} id=settings name=settings>x</x>"]
ADDRESSES = [f"javascript:{RUN}", f"JaVaScRiPt:{RUN}", f"java&#9;script:{RUN}", f"&#106;avascript:{RUN}", f"javascript&colon;{RUN}",
             f"%6aavascript:{RUN}", f"&#x1;javascript:{RUN}", f"javascript://x.example/%0a{RUN}", f"data:text/html,<script>{RUN}</script>",
             "data:image/svg+xml;base64,PHN2Zy8+", f"vbscript:{RUN}", "file:///etc/passwd", "//evil.example/x", "/v1/requests/x/cancel",
             f"view-source:javascript:{RUN}", "blob:https://evil.example/x", f"feed:javascript:{RUN}"]
AROUND_HTML = ["{}", "A line with {} in it.", "| a |\n|---|\n| {} |\n", "- {}\n  - [ ] {}", "> # {}", "```{}\n{}\n```", "**{}** `{}`",
               "[{}](https://example.org)", "![{}](https://evil.example/i)"]
AROUND_ADDRESSES = ["[x]({})", "[x](<{}>)", "<{}>", "[x][r]\n\n[r]: {}", "![x]({})", "[![x]({0})]({0})", "<a href=\"{}\">x</a>",
                    "[x]({} \"t' onmouseover=pwn() '\")"]
ENTITIES = [f"&lt;img src=x onerror={RUN}&gt;", f"&#60;script&#62;{RUN}&#60;/script&#62;", f"&amp;lt;svg onload={RUN}&amp;gt;", "&#0;&#xD800;&#x110000;",
            f"```html\"><img src=x onerror={RUN}>\nx\n```", "```constructor\nx\n```", "```__proto__\nx\n```", "[__proto__]: javascript:x\n\n[__proto__]",
            ">" * 3000 + "x", "[" * 3000 + "x", "*" * 3000 + "x", "- " * 400 + "x", "<" * 2000, "`" * 999 + "x"]


def injections():
    """Each HTML in two places, in rotation, and each address in each form of a link."""
    places = itertools.cycle(AROUND_HTML)
    texts = [next(places).replace("{}", each) for each in HTML for _ in range(2)]
    texts += [around.replace("{0}", each).replace("{}", each) for each in ADDRESSES for around in AROUND_ADDRESSES]
    return texts + ENTITIES


# What is in a rendered text that may not be there.
FOREIGN = """((root) => {
    const tags = new Set(('p span a code pre strong em del br hr h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td '
        + 'div button').split(' '));
    const attributes = new Set(['class', 'href', 'target', 'rel', 'title', 'start', 'tabindex', 'role', 'aria-label', 'type']);
    const found = [];
    for (const each of root.querySelectorAll('*')) {
        const name = each.tagName.toLowerCase();
        if (!tags.has(name) || each.namespaceURI !== 'http://www.w3.org/1999/xhtml') found.push(name);
        for (const {name: attribute, value} of each.attributes) {
            if (!attributes.has(attribute)) found.push(`${name} ${attribute}`);
            if (attribute === 'href' && !/^(https?:\\/\\/|mailto:)/.test(value)) found.push(`${name} ${value}`);
        }
    }
    return found; })"""


def check(page, root, n_requests):
    """Returns what an injection has reached: foreign elements, scripts that ran, requests, violations."""
    time.sleep(0.5)  # what loads, fails, or begins by itself has had its time
    return (page.evaluate(f"{FOREIGN}({root})"), page.evaluate("window.pwned"), page.requests[n_requests:],
            page.evaluate("violations"))


@pytest.fixture
def page(browser, server):
    one = open_chat(browser, server)
    one.evaluate(STUB)
    one.evaluate("window.pwned = 0; window.pwn = () => { window.pwned++; }; 0")
    yield one
    one.ask("Page.navigate", url="about:blank")


def test_there_are_200():
    assert len(set(injections())) >= 200


def test_no_injection_becomes_more_than_text(page):
    """As a whole, and as it grows in a stream."""
    page.evaluate("(async () => { await (await import('/ui/load.js')).load('highlight.js'); })()")
    n = len(page.requests)
    failed = page.evaluate(f"""(async () => {{
        const {{renderInto}} = await import('/ui/markdown.js'), failed = [];
        const root = document.body.appendChild(document.createElement('div'));
        root.id = 'injected';
        for (const text of {json.dumps(injections())}) {{
            const whole = root.appendChild(document.createElement('div'));
            renderInto(whole, text, true);
            const growing = root.appendChild(document.createElement('div'));
            const step = Math.max(5, Math.ceil(text.length / 12));
            for (let i = step; i < text.length; i += step) renderInto(growing, text.slice(0, i), false);
            renderInto(growing, text, true);
            if (growing.textContent !== whole.textContent) failed.push(text.slice(0, 80));
        }}
        return failed; }})()""")
    assert failed == []
    foreign, ran, requests, violations = check(page, "document.querySelector('#injected')", n)
    assert foreign == [] and ran == 0 and violations == []
    assert all("/ui/" in each for each in requests), requests


def test_no_part_of_an_answer_becomes_more_than_text(page, server):
    """Content, reasoning, names and arguments of calls, the question and the title made of it."""
    text = "\n\n".join(each for each in injections() if len(each) < 300)
    n = len(page.requests)
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": HTML[1], "arguments": HTML[2]}}
    will_answer(page, delta(reasoning_content=text), delta(content=text), delta(tool_calls=[call]), end("tool_calls"))
    page.evaluate(f"document.querySelector('#message').value = {json.dumps(HTML[1] + text)}")
    page.click("#send")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {DONE}")
    foreign, ran, requests, violations = check(page, "document.querySelector('.assistant > .content')", n)
    assert foreign == [] and ran == 0 and violations == []
    assert page.evaluate(f"{FOREIGN}(document.querySelector('.thought .content'))") == []
    assert page.evaluate("document.querySelectorAll('img, svg, iframe, math, object, embed, form:not(#composer, #key-form)').length") == 0
    assert all(each.startswith(server.url) for each in requests), requests


def test_the_policy_holds_where_the_renderer_would_not(page):
    """What a fault of the page could do is forbidden by the browser."""
    for sink in ("document.body.innerHTML = '<img src=x onerror=pwn()>'", "eval('pwn()')", "new Function('pwn()')()",
                 "document.body.appendChild(document.createElement('script')).textContent = 'pwn()'",
                 "document.createElement('script').src = 'ui/chat.js'", "new Worker('data:text/javascript,0')",
                 "trustedTypes.createPolicy('other', {createHTML: (x) => x})"):
        told = page.ask("Runtime.evaluate", returnByValue=True, allowUnsafeEvalBlockedByCSP=False, expression=f"""(() => {{
            try {{ {sink}; return 'done'; }} catch (error) {{ return error.name; }} }})()""")
        assert told["result"]["value"] != "done", sink
    page.evaluate("fetch('https://evil.example/x').catch(() => 0)")
    page.evaluate("document.body.appendChild(new Image()).src = 'https://evil.example/i'")
    page.wait("violations.some((each) => each.startsWith('img-src'))")
    assert page.evaluate("pwned") == 0
    assert any(each.startswith("connect-src") for each in page.evaluate("violations"))


NAIVE = """<!doctype html><div id=injected></div><script src=marked.js></script>
<script>window.pwned = 0; window.pwn = window.parent.pwn = () => { window.pwned++; };</script>"""


class NaiveHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.server.files.get(self.path)
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


def test_the_checks_can_fail(browser, server):
    """The same texts in a page that renders them as marked does, without a policy."""
    marked = gzip.decompress(server.get("/ui/lib/marked.js", headers={"Accept-Encoding": "gzip"}).body)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NaiveHandler) as naive:
        naive.files = {"/": NAIVE.encode(), "/marked.js": marked}
        threading.Thread(target=naive.serve_forever, daemon=True).start()
        page = browser.open(f"http://127.0.0.1:{naive.server_port}/")
        n = len(page.requests)
        page.evaluate(f"""{{ for (const text of {json.dumps([each for each in injections() if len(each) < 300 and '<meta' not in each])}) {{
            const one = document.querySelector('#injected').appendChild(document.createElement('div'));
            one.innerHTML = marked.parse(text); }} }}""")
        foreign, ran, requests, _ = check(page, "document.querySelector('#injected')", n)
        naive.shutdown()
        page.ask("Page.navigate", url="about:blank")
    assert ran > 10 and len(foreign) > 100
    assert any("evil.example" in each for each in requests)
