"""A server of files on 127.0.0.1 that can continue a download, and what child processes need."""

import contextlib
import hashlib
import http.server
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from paths import ROOT

# First line of a child process in which TensorFlow cannot be found, installed or not. (None in
# sys.modules would do for us, but TFDS takes it for a module that is there.)
WITHOUT_TENSORFLOW = (
    "import sys, importlib.machinery as m; find = m.PathFinder.find_spec; "
    "m.PathFinder.find_spec = lambda name, *a: "
    "None if name.partition('.')[0] == 'tensorflow' else find(name, *a)"
)


def run_without_tensorflow(code):
    """Runs indented Python code in a process of its own; what it printed."""
    lines = [WITHOUT_TENSORFLOW, "import sys", textwrap.dedent(code)]
    command = [sys.executable, "-c", "\n".join(lines)]
    root = ROOT
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


class Handler(http.server.BaseHTTPRequestHandler):
    """GET with a Range "bytes=n-", ETag and If-Range; `server.cut` ends a reply early, once."""

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
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
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
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def server(folder):
    """The server itself: `url`, `asked` [(path, Range)], and `cut` (bytes of the next reply)."""
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.folder, found.cut, found.asked = folder, 0, []
    found.url = f"http://127.0.0.1:{found.server_port}/"
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


@contextlib.contextmanager
def serve(folder):
    """The URL, ending with "/", under which the files of a folder are served."""
    with server(folder) as found:
        yield found.url
