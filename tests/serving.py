"""A file server on 127.0.0.1 that can continue a download."""

import contextlib
import hashlib
import http.server
import threading
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET with Range "bytes=n-", ETag and If-Range; `server.cut` ends one reply early.

    With `server.shift` a reply to a Range begins that many bytes before it.
    """

    def do_GET(self):
        path = Path(self.server.folder) / self.path.lstrip("/")
        self.server.asked.append((self.path, self.headers.get("Range")))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        begin = 0
        if (asked := self.headers.get("Range")) and self.headers.get("If-Range", tag) == tag:
            begin = int(asked.removeprefix("bytes=").removesuffix("-")) - self.server.shift
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[begin:]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", tag)
        self.end_headers()
        if self.server.cut:
            body, self.server.cut = body[: self.server.cut], 0
        with contextlib.suppress(BrokenPipeError):  # the client wants no more
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def server(folder):
    """Yields a server with `url`, `asked` [(path, Range)], and `cut` (bytes of the next reply)."""
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.folder, files.cut, files.shift, files.asked = folder, 0, 0, []
    files.url = f"http://127.0.0.1:{files.server_port}/"
    thread = threading.Thread(target=files.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield files
    finally:
        files.shutdown()
        files.server_close()
        thread.join()


@contextlib.contextmanager
def serve(folder):
    """Yields the URL, ending with "/", of a server of the files in a folder."""
    with server(folder) as files:
        yield files.url
