"""A server before quire that says what a model would: the answer of each turn is forced, by structured_outputs.

So an agent can be led through calls that the default model would not make.  All else is quire's: the prompt that it
makes of what the agent sends, and the events in which the answer comes.  Bodies are kept, in their order."""
import http.client
import http.server
import json
import threading

GENERATES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


class Scripted:
    def __init__(self, quire, answers):
        self.bodies, self.statuses = [], []
        answers = iter(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do(handler):
                body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                if handler.command == "POST" and handler.path.split("?")[0] in GENERATES:
                    self.bodies.append(json.loads(body))
                    body = json.dumps({**self.bodies[-1], "structured_outputs": {"choice": [next(answers)]}}).encode()
                headers = {name: value for name, value in handler.headers.items()
                           if name.lower() not in ("host", "content-length", "connection", "accept-encoding")}
                connection = http.client.HTTPConnection("127.0.0.1", quire.port, timeout=600)
                connection.request(handler.command, handler.path, body or None, headers)
                reply = connection.getresponse()
                if handler.command == "POST":
                    self.statuses.append(reply.status)
                handler.send_response(reply.status)
                handler.send_header("Content-Type", reply.headers.get("Content-Type", "text/plain"))
                handler.end_headers()  # HTTP/1.0: the end of the answer is that of the connection
                while part := reply.read1(1 << 16):
                    handler.wfile.write(part)
                connection.close()

            do_GET = do_HEAD = do_POST = do

            def log_message(handler, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()
