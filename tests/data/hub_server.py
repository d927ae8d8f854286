"""A small hub on this machine: the part of its API that fetching uses, with faults to order."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


class Hub:
    """Repositories by name, each with revisions of files; `cuts` and `lies` are the faults."""

    def __init__(self):
        self.repos = {}
        self.gated = set()
        self.cuts = {}  # how many more times a file's connection is cut half-way
        self.lies = {}  # content sent instead of a file's own
        self.asked = []  # (method, file, range) of every request for content
        self.url = ""

    def put(self, repo, files, revision="main", commit=COMMIT):
        self.repos.setdefault(repo, {})[revision] = (commit, files)
        self.repos[repo][commit] = (commit, files)

    def told(self, repo, revision):
        """What the API says of a repository; every file but the smallest is large, with a sha256."""
        commit, files = self.repos[repo][revision]
        siblings = []
        for name, content in files.items():
            sibling = {"rfilename": name, "size": len(content)}
            if len(content) < 20:
                siblings.append(sibling | {"blobId": git_name(content)})
                continue
            sha256 = hashlib.sha256(content).hexdigest()
            pointer = f"oid sha256:{sha256}\nsize {len(content)}\n".encode()  # what git itself holds of a large file
            large = {"sha256": sha256, "size": len(content), "pointerSize": len(pointer)}
            siblings.append(sibling | {"blobId": git_name(pointer), "lfs": large})
        return {"id": repo, "sha": commit, "siblings": siblings, "tags": [], "private": False}


def git_name(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.content(body=False)

    def do_GET(self):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] != ["api", "datasets"]:
            return self.content(body=True)
        repo, revision = "/".join(parts[2:4]), "/".join(parts[5:]) or "main"
        if repo in self.hub.gated:
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if repo not in self.hub.repos:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in self.hub.repos[repo]:
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        told = json.dumps(self.hub.told(repo, revision)).encode()
        return self.answer(200, told, {"Content-Type": "application/json"})

    def content(self, body):
        _, owner, name, _, revision, *path = unquote(urlsplit(self.path).path).strip("/").split("/")
        file = "/".join(path)
        commit, files = self.hub.repos[f"{owner}/{name}"][revision]
        own = files[file]
        sent = self.hub.lies.get(file, own)
        asked = self.headers.get("Range")
        self.hub.asked.append((self.command, file, asked))
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(own).hexdigest()}"', "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(sent) - 1}/{len(sent)}"
        cut = body and self.hub.cuts.get(file, 0) > 0
        if cut:
            self.hub.cuts[file] -= 1
        self.answer(206 if asked else 200, sent[start:], headers, body, cut)

    def answer(self, status, content, headers, body=True, cut=False):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def running():
    """A hub that answers on a port of its own, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = Hub()
    server.hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
