"""The server of live pages: who may ask, what it reads, and what it sends."""

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from esper_core.leyline.events import GovernorActed, RunFinished
from esper_core.telemetry import encode
from esper_watch.report import read_report, report_page
from esper_watch.web.followed_run import FollowedRun
from esper_watch.web.fragments import LivePage
from esper_watch.web.server import MOST_CONNECTIONS, Server
from tests.support.html_pages import Page
from tests.support.loops import make_loop

RUN = "20261121-101512-quiet-otter"
LINKED = ("events.jsonl", "manifest.json", "summary.json", "config.yaml")


@contextmanager
def served(run):
    """A server in a thread."""
    with Server(run, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)
        assert not thread.is_alive()


def ask(server, path, method="GET", cookie="OWN", **headers):
    """Status, headers and text of an answer. OWN in a cookie stands for that of the server."""
    if cookie:
        headers["Cookie"] = cookie.replace("OWN", server.access.cookie)
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


@pytest.fixture(scope="module")
def run(usual_report, tmp_path_factory):
    return shutil.copytree(usual_report.parent, tmp_path_factory.mktemp("web") / RUN)


@pytest.fixture(scope="module")
def server(run):
    with served(run) as server:
        yield server


# --- access


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_url(server):
    status, headers, _ = ask(server, f"/?token={server.access.token}", cookie=None)
    assert (status, headers["Location"]) == (303, "/")
    assert {server.access.cookie, "HttpOnly", "SameSite=strict"} <= set(headers["Set-Cookie"].split("; "))


@pytest.mark.parametrize(
    ("path", "status", "how"),
    [
        ("/", 200, {}),
        ("/static/live.js", 200, {}),
        ("/", 200, {"Host": "localhost:9999"}),
        ("/", 200, {"cookie": 'other="{1: 2}|\\; b={"c": 1}; OWN; a b'}),  # beside those of other servers on this host
        ("/", 403, {"cookie": None}),
        ("/changes", 403, {"cookie": None}),
        ("/static/live.js", 403, {"cookie": None}),
        ("/", 403, {"cookie": "esper-1=x"}),
        ("/?token=wrong", 403, {}),
        ("/?token=", 403, {}),
        ("/", 403, {"Host": "evil.example"}),
        ("/", 403, {"Host": "127.0.0.1.evil.example"}),
        ("/", 403, {"Host": "[::1].evil.example"}),
        ("/", 403, {"Host": ""}),
        ("/", 403, {"Sec_Fetch_Site": "cross-site"}),
        ("/", 403, {"Sec_Fetch_Site": "same-site"}),
        ("/", 501, {"method": "POST"}),
        ("/run/..%2Fsecret", 404, {}),
        ("/../../secret", 404, {}),
        ("/static/..%2Fpages.py", 404, {}),
        ("/static/probe.html", 404, {}),
        ("live.js", 404, {}),
    ],
)
def test_foreign_requests_and_paths_are_refused(server, path, status, how):
    received, headers, text = ask(server, path, **how)
    assert received == status
    assert "secret" not in text
    if status != 501:
        assert "unsafe" not in headers["Content-Security-Policy"]
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("name", LINKED)
def test_a_run_with_a_link_in_it_is_not_read(run, tmp_path, name):
    inside = shutil.copytree(run, tmp_path / RUN)
    (tmp_path / "elsewhere").write_text("secret")
    (inside / name).unlink(missing_ok=True)
    (inside / name).symlink_to(tmp_path / "elsewhere")
    page = LivePage(inside).html()
    assert "it is a link, which may lead out of the folder" in page
    assert "secret" not in page


@pytest.mark.parametrize("name", LINKED)
def test_a_huge_file_does_not_keep_a_page_from_being_shown(make_run, name):
    run = make_run(environments=1, steps=2)
    os.truncate(run / name, 1 << 40)
    page = LivePage(run).html()
    assert run.name in page
    assert ("a line has more than" in page) is (name == "events.jsonl")


def test_the_user_is_told_the_tunnel_or_a_warning(tmp_path):
    with Server(tmp_path, port=0) as local, Server(tmp_path, host="0.0.0.0", port=0) as everywhere:
        port = local.server_port
        assert local.url.startswith(f"http://127.0.0.1:{port}/?token=")
        assert f"ssh -L {port}:127.0.0.1:{port} " in local.remote_access
        assert "can be reached from other machines" in everywhere.remote_access
        assert everywhere.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{run}", "--port", "{taken}"], "E433 cannot listen on 127.0.0.1:{taken}: Address already in use"),
        (["{run}", "--host", "203.0.113.1"], "E433 cannot listen on 203.0.113.1:6174"),
        (["nothing"], "E420 there is no run nothing"),
        ([], "there is no run in "),
    ],
)
def test_what_cannot_be_served_is_reported(esper, server, run, options, message):
    names = {"taken": server.server_port, "run": run}
    answer = esper("watch", *(option.format(**names) for option in options))
    assert answer.status in (1, 2)
    assert message.format(**names) in answer.err


def test_idle_connections_do_not_keep_the_owner_out(run):
    """They need no token. Each takes an open file, of which a process may often have 1,024."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served(run) as server, ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 8192), before[1]))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        started = [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
        for number in range(200):
            idle = opened.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            with suppress(OSError):  # the server has closed it already
                idle.sendall(started[number % 3])
        assert ask(server, "/")[0] == 200
        assert len(server._open) <= MOST_CONNECTIONS


# --- what is shown


def test_the_page_of_the_current_folder_has_its_name(run, monkeypatch):
    monkeypatch.chdir(run)
    page = LivePage(Path()).html()
    assert f"<title>{RUN} · Esper</title>" in page
    assert f"<h1>{RUN}</h1>" in page


def test_the_page_has_the_sections_of_the_report(run, server):
    _, _, page = ask(server, "/")
    report = report_page(read_report(run))
    _, *sections = LivePage(run).fragments()
    assert len(sections) > 8
    for section in sections:
        assert section.html in page
        assert section.html.strip() in report


def test_a_gardener_is_watched(tmp_path):
    loop = make_loop().tended({}, run_dir=tmp_path, steps=20)
    loop.epochs(3)
    run = loop.gardener.path
    growing = Page(LivePage(run).html()).text
    loop.gardener.close()
    done = Page(LivePage(run).html()).text
    for phrase in ("1 arm · 1 network · 20 steps · running", "(3 of 20 steps)"):
        assert phrase in growing
    reproduce = "To reproduce these numbers, run the script again."
    for phrase in ("· done ·", "validation loss", "command python ", reproduce):
        assert phrase in done
    assert "interval of the mean" not in done


def test_the_name_of_a_folder_is_text(make_run, tmp_path):
    name = "a\"'><img src=x onerror=alert(1)>&{{7*7}}?#%2e"
    page = Page(LivePage(make_run(environments=1, steps=5).rename(tmp_path / name)).html())
    assert name in page.text
    assert not {"img"} & {tag for tag, _ in page.elements}
    assert not {key for _, attributes in page.elements for key in attributes if key.startswith("on")}


# --- what is read


def act(reason):
    return encode(GovernorActed(round=0, arm="grown", seed=0, step=1, act="warn", verdict="warning", reason=reason))


def append(run, text):
    with (run / "events.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def followed(make_run):
    run = make_run(environments=2, steps=10)
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[:-1]))
    followed = FollowedRun(run)
    followed.refresh()
    return followed


def count(followed):
    followed.refresh()
    assert followed.problem is None
    return len(followed.history.governor)


def test_new_events_are_read_and_a_torn_line_waits(followed):
    before, line = count(followed), act("é")
    append(followed.path, line[:-3])
    assert count(followed) == before
    append(followed.path, line[-3:])
    assert count(followed) == before
    append(followed.path, "\n" + act("b") + "\n")
    assert count(followed) == before + 2
    append(followed.path, encode(RunFinished(status="interrupted")) + "\n")
    followed.refresh()
    assert followed.history.status == "interrupted"


def test_a_page_can_be_made_after_each_event(make_run):
    run = make_run(environments=1, steps=8)
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("")
    page = LivePage(run)
    for line in lines:
        append(run, line)
        assert len(page.fragments()) > 1


@pytest.mark.parametrize("how", ["cut", "cut and continued", "replaced", "deleted"])
def test_a_file_that_was_written_anew_is_read_again(followed, how):
    file, before = followed.path / "events.jsonl", count(followed)
    content = file.read_bytes()
    first = content[: content.index(b"\n", len(content) // 2) + 1]
    if how == "deleted":
        file.unlink()
        followed.refresh()
        assert followed.history.started is None
        return
    if how == "replaced":
        other = file.with_name("other")
        other.write_bytes(content + act("new").encode() + b"\n")
        other.replace(file)
        assert count(followed) == before + 1
        return
    os.truncate(file, len(first))
    added = 200 if how == "cut and continued" else 0
    append(followed.path, (act("new") + "\n") * added)
    assert file.stat().st_size < len(content) or added
    assert count(followed) == first.count(b'"governor-acted"') + added


def test_a_line_that_is_no_event_is_named_and_the_rest_is_kept(followed):
    append(followed.path, "nonsense\n")
    followed.refresh()
    assert followed.problem.code == "E421"
    number = (followed.path / "events.jsonl").read_text().count("\n")
    assert f"events.jsonl:{number}" in str(followed.problem)
    assert followed.history.started is not None


def test_reading_writes_nothing_below_the_runs(make_run):
    run = make_run(environments=2, steps=10)

    def state():
        return {path: path.stat().st_mtime_ns for path in (run.parent, *run.parent.rglob("*"))}

    before = state()
    LivePage(run).html()
    assert state() == before


# --- what changed


def test_only_what_changed_is_sent(make_run):
    run = make_run(environments=2, steps=10)
    with served(run) as server:

        def changes(shown=""):
            return json.loads(ask(server, f"/changes?shown={shown}")[2])

        first = changes()
        assert list(first["changed"]) == first["order"]
        shown = {name: change["digest"] for name, change in first["changed"].items()}
        query = ",".join(f"{name}:{digest}" for name, digest in shown.items())
        assert changes(query) == {}
        append(run, act("hot") + "\n")
        second = changes(query)
        assert "governor" in second["changed"]
        assert "courses" not in second["changed"]
        shutil.rmtree(run)
        assert changes(query) == {"gone": True}


LATER = "Date.now = ((now) => () => now() + 40000)(Date.now)"
"""Forty seconds pass in a page, without waiting for them."""


@pytest.mark.install  # CI runs it for every change
def test_a_page_says_that_its_server_is_silent_and_goes_on_when_it_speaks_again(make_run, browser, tmp_path):
    """A stopped process keeps its connections open: nothing but the missing answers tells."""
    make_run(environments=2, steps=4)
    command = [sys.executable, "-m", "esper_run", "watch", "--runs-dir", tmp_path, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        stack.callback(process.kill)
        page = browser.open(next(line.strip() for line in process.stderr if line.startswith("http")))

        def until(text):
            script = f"document.getElementById('connection').textContent.startsWith('{text}')"
            page.evaluate(f"new Promise((tell) => setInterval(() => {script} && tell(), 20))")

        until("up to date")
        page.evaluate("AbortSignal.timeout = () => AbortSignal.abort()")
        page.evaluate(LATER)
        until("no word from the server for 4")
        page.evaluate("AbortSignal.timeout = () => undefined")
        until("up to date")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 0
