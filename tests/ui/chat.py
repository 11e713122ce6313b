"""What tests of the chat at / share: a page that is ready, a question, an answer that a test writes."""
import json

READY = "document.querySelector('#state-text')?.textContent === 'ready'"
DONE = "document.querySelector('#stop').hidden && document.querySelector('.message:last-child .bar button') !== null"
# Answers of the server that a test writes: window.answers holds lists of events, one for each request.
STUB = """{ const real = window.fetch; window.answers = []; window.bodies = [];
    window.fetch = (path, how) => {
        if (!String(path).endsWith('v1/chat/completions') || answers.length === 0) return real(path, how);
        bodies.push(JSON.parse(how.body));
        const events = answers.shift(), encoder = new TextEncoder();
        const stream = new ReadableStream({async start(out) {
            for (const each of events) {
                if (each === 'no end') {
                    await new Promise((resolve) => how.signal.addEventListener('abort', resolve));
                    out.error(how.signal.reason);
                    return;
                }
                if (each === 'cut') {
                    await new Promise((resolve) => setTimeout(resolve, 300)); /* what came is read first */
                    out.error(new TypeError('network error'));
                    return;
                }
                out.enqueue(encoder.encode(`data: ${JSON.stringify(each)}\\n\\n`));
            }
            out.enqueue(encoder.encode('data: [DONE]\\n\\n'));
            out.close(); }});
        return Promise.resolve(new Response(stream, {status: 200})); }; }"""


COLOURED = "document.querySelectorAll('.hljs-keyword').length > 0"


def check_clean(page, server):
    """As the page's own check; the version of highlight.js in Debian 12 says that there is a newer one."""
    page.faults = [each for each in page.faults if "Highlight.js has reached EOL" not in each]
    page.check_clean(server.url)


def open_chat(browser, server, **rest):
    page = browser.open(f"{server.url}/", **rest)
    page.wait(READY)
    return page


def ask(page, text, seconds=60):
    page.click("#message")
    page.type(text)
    n = page.evaluate("document.querySelectorAll('.message').length")
    page.click("#send")
    page.wait(f"document.querySelectorAll('.message').length === {n + 2} && {DONE}", seconds)


def delta(**members):
    return {"choices": [{"index": 0, "delta": members, "finish_reason": None}], "usage": None}


def end(reason="stop"):
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": None}


def will_answer(page, *events):
    page.evaluate(f"answers.push({json.dumps(events)}), 0")


def answers_of(page):
    return page.evaluate("[...document.querySelectorAll('.assistant > .content')].map((e) => e.innerText)")


def drop(page, name, data):
    """A file dropped on the page."""
    listed = ",".join(map(str, data))
    page.evaluate(f"""{{ const data = new DataTransfer();
        data.items.add(new File([new Uint8Array([{listed}])], {json.dumps(name)}));
        document.body.dispatchEvent(new DragEvent('drop', {{dataTransfer: data, bubbles: true, cancelable: true}})); }}""")


def pdf_of(text):
    """A PDF of one page with one line."""
    stream = f"BT /F1 18 Tf 40 100 Td ({text}) Tj ET".encode()
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
               b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
               b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
               b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    data, places = b"%PDF-1.4\n", []
    for i, each in enumerate(objects):
        places.append(len(data))
        data += b"%d 0 obj%s endobj\n" % (i + 1, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        table, len(data))
