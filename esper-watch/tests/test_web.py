"""The server of live pages: who may ask, what it reads, and what it sends."""

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from urllib.parse import quote

import pytest

from tests.support.html_pages import Page

pytest.importorskip("starlette", reason="needs starlette and uvicorn, which `make test` installs")

from esper_core.leyline import ConfigError
from esper_core.leyline.events import GovernorActed, RunFinished
from esper_core.telemetry import encode
from esper_watch.report import read_report, report_page
from esper_watch.web import connections
from esper_watch.web.beside import ServerBeside, require_extra
from esper_watch.web.fragments import run_fragments
from esper_watch.web.index import FollowedRun, RunsFolder
from esper_watch.web.server import Server, lines
from esper_watch.web.site import PAUSE, Site

RUN = "20261121-101512-quiet-otter"
LINKED = ("events.jsonl", "manifest.json", "summary.json", "config.yaml")


@contextmanager
def served(root, only=None):
    """A server in a thread."""
    server = Server(root, only, port=0)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(5)
        assert not thread.is_alive()


def ask(server, path, method="GET", cookie="OWN", **headers):
    """Status, headers and text of an answer. OWN in a cookie stands for that of the server."""
    if cookie and "OWN" in cookie:
        cookie = cookie.replace("OWN", own_cookie(server))
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=request_headers | ({"Cookie": cookie} if cookie else {}))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def own_cookie(server):
    return ask(server, address(server), cookie=None)[1]["Set-Cookie"].partition(";")[0]


def address(server, path="/"):
    return server.url(path).partition(str(server.port))[2]


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory, usual_report):
    """A folder with one run, a folder beside it, and a link that leads out of it."""
    root = tmp_path_factory.mktemp("web")
    secret = root / "secret"
    secret.mkdir()
    runs = root / "runs"
    runs.mkdir()
    shutil.copytree(usual_report.parent, runs / RUN)
    (runs / "linked").symlink_to(secret)
    for name in LINKED:
        text = (usual_report.parent / name).read_text() if (usual_report.parent / name).exists() else ""
        (secret / name).write_text(text.replace("0", "secret", 1) or "secret")
        shutil.copytree(usual_report.parent, runs / f"inside-{name}")
        (runs / f"inside-{name}" / name).unlink(missing_ok=True)
        (runs / f"inside-{name}" / name).symlink_to(secret / name)
    return runs


@pytest.fixture(scope="module")
def server(runs_folder):
    with served(runs_folder) as server:
        yield server


# --- access


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_url(server):
    status, headers, _ = ask(server, address(server, "/run/a%20b"), cookie=None)
    assert (status, headers["Location"]) == (303, "/run/a%20b")
    assert {"HttpOnly", "SameSite=strict"} <= set(headers["Set-Cookie"].split("; "))
    elsewhere = address(server, "//evil.example/")
    assert ask(server, elsewhere, cookie=None)[1]["Location"] == "/evil.example/"


@pytest.mark.parametrize(
    ("path", "status", "how"),
    [
        ("/", 200, {}),
        (f"/run/{RUN}", 200, {}),
        ("/static/live.js", 200, {}),
        ("/", 200, {"Host": "localhost:9999"}),
        ("/", 200, {"cookie": 'other="{1: 2}|\\; b={"c": 1}; OWN; a b'}),  # beside those of other servers on this host
        ("/", 403, {"cookie": None}),
        ("/static/live.js", 403, {"cookie": None}),
        ("/", 403, {"cookie": "esper-1=x"}),
        ("/?token=wrong", 403, {}),
        ("/", 403, {"Host": "evil.example"}),
        ("/", 403, {"Host": "127.0.0.1.evil.example"}),
        ("/", 403, {"Host": "[::1].evil.example"}),
        ("/", 403, {"Host": ""}),
        ("/", 403, {"Sec_Fetch_Site": "cross-site"}),
        ("/", 403, {"Sec_Fetch_Site": "same-site"}),
        ("/", 405, {"method": "POST"}),
        ("/run/linked", 404, {}),
        ("/run/..%2Fsecret", 404, {}),
        ("/run/%2E%2E", 404, {}),
        ("/run/../../secret", 404, {}),
        ("/compare", 400, {}),
        ("/compare?runs=linked", 404, {}),
        ("/compare?runs=../secret", 404, {}),
        ("/static/..%2Fpages.py", 404, {}),
        ("/static/probe.html", 404, {}),
    ],
)
def test_foreign_requests_and_paths_are_refused(server, path, status, how):
    received, headers, text = ask(server, path, **how)
    assert received == status
    assert "secret" not in text.replace("../secret", "")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("name", LINKED)
def test_a_run_with_a_link_in_it_is_not_read(server, name):
    for path in (f"/run/inside-{name}", f"/compare?runs={RUN},inside-{name}"):
        _, _, text = ask(server, path)
        assert "it is a link, which may lead out of the folder" in text
        assert "secret" not in text


@pytest.mark.parametrize("name", LINKED)
def test_a_huge_file_makes_a_row_of_its_run_and_hides_no_other(make_run, tmp_path, name):
    run = make_run(environments=1, steps=2)
    other = shutil.copytree(run, run.parent / "20261122-101512-late-wren")
    with (run / name).open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.truncate(1 << 40)
    with served(run.parent) as server:
        status, _, text = ask(server, "/")
        assert status == 200
        assert run.name in text
        assert other.name in text
        assert ("a line has more than" in text) is (name == "events.jsonl")
        for path in (f"/run/{run.name}", f"/run/{other.name}", f"/compare?runs={run.name},{other.name}"):
            assert ask(server, path)[0] in (200, 409)


def test_idle_connections_do_not_keep_the_owner_out(make_run, monkeypatch):
    """They need no token. Each takes an open file, of which a process may often have 1,024."""
    monkeypatch.setattr(connections, "SECONDS_TO_WAIT", 0.2)
    run = make_run(environments=1, steps=2)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served(run.parent) as server, ExitStack() as opened:
        assert ask(server, "/")[0] == 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 8192), before[1]))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        started = [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
        for number in range(200):
            idle = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with suppress(OSError):  # the server has closed it already
                idle.sendall(started[number % 3])
        began = time.monotonic()
        assert ask(server, "/")[0] == 200
        assert time.monotonic() - began < 1
        held = server._server.server_state.connections
        for most in (connections.MOST_WAITING + 1, 0):
            until = time.monotonic() + 10
            while len(held) > most and time.monotonic() < until:
                time.sleep(0.05)
            assert len(held) <= most


def test_only_the_named_run_is_shown(runs_folder):
    with served(runs_folder, only=RUN) as server:
        assert ask(server, f"/run/inside-{LINKED[0]}")[0] == 404
        assert "inside" not in ask(server, "/")[2]


def test_the_lines_for_the_user_have_the_tunnel_or_a_warning(tmp_path):
    with closing(Server(tmp_path, port=0)) as local, closing(Server(tmp_path, host="0.0.0.0", port=0)) as everywhere:
        local_lines, warned = lines(local), lines(everywhere)
    assert local_lines[1] == local.url()
    assert local_lines[3].startswith(f"ssh -L {local.port}:127.0.0.1:{local.port} ")
    assert "can be reached from other machines" in warned[2]
    assert "token=" in warned[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--web", "--port", "{taken}"], "E433 cannot listen on 127.0.0.1:{taken}: Address already in use"),
        (["--web", "--host", "203.0.113.1"], "E433 cannot listen on 203.0.113.1:6174"),
        (["nothing", "--web"], "E420 there is no run nothing"),
        (["--port", "1"], "--host, --port and --open need --web"),
        ([], "name a run, or show all of them:  esper watch --web"),
    ],
)
def test_what_cannot_be_served_is_reported(esper, server, options, message):
    taken = str(server.port)
    answer = esper("watch", *(option.replace("{taken}", taken) for option in options))
    assert answer.status in (1, 2)
    assert message.replace("{taken}", taken) in answer.err


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"uvicorn cannot be imported[\s\S]*pip install 'esper-watch\[web\]'"):
        require_extra()


def test_a_server_beside_ends_with_its_run(runs_folder):
    with ServerBeside(runs_folder, "/newest") as beside:
        url = beside.lines()[1]
        port = int(url.split(":")[2].partition("/")[0])
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


# --- what is shown


def test_the_page_has_the_sections_of_the_report(runs_folder, server):
    _, _, page = ask(server, f"/run/{RUN}")
    report = report_page(read_report(runs_folder / RUN))
    followed = FollowedRun(runs_folder / RUN)
    followed.refresh()
    _, *sections = run_fragments(followed)
    assert len(sections) > 8
    for section in sections:
        assert section.html in page
        assert section.html.strip() in report


def test_the_list_of_runs_has_status_headline_and_curve(server):
    _, _, page = ask(server, "/")
    assert [part for part in ("Growing helped", ">done<", "<polyline", "unreadable") if part not in page] == []


def test_runs_are_compared(write_run, tmp_path):
    for number, name in enumerate(("one", "other")):
        run = write_run(name, {"grown": [0.8 + number / 10] * 8, "twin": [0.5] * 8})
        (run / "events.jsonl").touch()
    with served(tmp_path / "runs") as server:
        status, headers, page = ask(server, "/compare?runs=one,other")
        assert status == 200
        assert "grown" in page
        style = page.partition("<style>")[2].partition("</style>")[0].encode()
        assert b64encode(sha256(style).digest()).decode() in headers["Content-Security-Policy"]
        (tmp_path / "runs" / "other" / "summary.json").unlink()
        status, _, page = ask(server, "/compare?runs=one&runs=other")
        assert status == 409
        assert "E431" in page


def test_a_gardener_is_watched(tmp_path):
    import torch
    from torch import nn

    from esper_grow import Gardener

    torch.manual_seed(0)
    examples = [(torch.randn(50, 1, 8), torch.randint(2, (50,))) for _ in range(3)]
    model = nn.Sequential(nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU()), nn.Flatten(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    options = {"loss": loss, "slots": ["0"], "blueprints": ["conv_light"], "example": examples[0]}
    with Gardener(model, optimizer, validation=examples[1:], steps=20, run_dir=tmp_path, **options) as gardener:
        for batch in 3 * examples[:1]:
            loss(model, batch).mean().backward()
            optimizer.step()
            gardener.step(batch)
            gardener.tend()
        (run,) = tmp_path.iterdir()
        growing = Page(Site(RunsFolder(tmp_path)).run_page(run.name)).text
    done = Page(Site(RunsFolder(tmp_path)).run_page(run.name)).text
    for phrase in (
        "1 arm · 1 network · 20 steps · running",
        "(3 of 20 steps)",
        "Step 1 germinate conv_light in slot 0",
    ):
        assert phrase in growing
    for phrase in (
        "· done ·",
        "validation loss",
        "command python ",
        "To reproduce these numbers, run the script again.",
    ):
        assert phrase in done
    assert "interval of the mean" not in done


@pytest.mark.parametrize("path", [f"/run/{RUN}", f"/compare?runs={RUN},other"], ids=["run", "comparison"])
def test_pages_fit_the_screen_and_obey_their_policy(path, usual_report, tmp_path, browser):
    for name in (RUN, "other"):
        shutil.copytree(usual_report.parent, tmp_path / name)
    with served(tmp_path) as server:
        page = browser.open(server.url("/"))
        page.resize(390, 800)
        page.evaluate(f"location = '{path}'")
        while page.evaluate("document.readyState + location.pathname") != f"complete{path.partition('?')[0]}":
            pass
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none"
        assert page.evaluate("document.querySelector('a').innerText") == "All runs"
        page.evaluate("location = 'about:blank'")  # ends the stream
        assert page.complaints == []
        assert {url.split("/")[2] for url in page.requests if url != "about:blank"} == {f"127.0.0.1:{server.port}"}


def test_the_name_of_a_folder_is_text(make_run, tmp_path):
    name = "a\"'><img src=x onerror=alert(1)>&{{7*7}}?#%2e"
    make_run(environments=1, steps=5).rename(tmp_path / name)
    site = Site(RunsFolder(tmp_path))
    for page in (Page(site.index_page()), Page(site.run_page(name))):
        assert name in page.text or quote(name, safe="") in str(page.elements)
        assert not {"img"} & {tag for tag, _ in page.elements}
        assert not {key for _, attributes in page.elements for key in attributes if key.startswith("on")}
    no_text = (tmp_path / name).rename(tmp_path / os.fsdecode(b"\xff"))
    assert "0 runs" in site.index_page()
    no_text.rename(tmp_path / name)
    links = [attributes["href"] for tag, attributes in Page(site.index_page()).elements if tag == "a"]
    with served(tmp_path) as server:
        assert [ask(server, link)[0] for link in links] == [200]


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
    followed = FollowedRun(run)
    for line in lines:
        append(run, line)
        followed.refresh()
        assert len(run_fragments(followed)) > 1


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
    if how == "cut and continued":
        append(followed.path, (act("new") + "\n") * 200)
    assert file.stat().st_size < len(content) or how == "cut and continued"
    added = 200 if how == "cut and continued" else 0
    kept = first.count(b'"governor-acted"')
    assert count(followed) == kept + added


def test_a_line_that_is_no_event_is_named_and_the_rest_is_kept(followed):
    append(followed.path, "nonsense\n")
    followed.refresh()
    assert followed.problem.code == "E421"
    number = (followed.path / "events.jsonl").read_text().count("\n")
    assert f"events.jsonl:{number}" in str(followed.problem)
    assert followed.history.started is not None


def test_reading_writes_nothing_below_the_runs(followed):
    def state():
        return {path: path.stat().st_mtime_ns for path in (followed.path.parent, *followed.path.parent.rglob("*"))}

    before = state()
    folder = RunsFolder(followed.path.parent)
    folder.cards(1.0)
    run_fragments(followed)
    assert state() == before


# --- the stream


def test_the_stream_sends_only_what_changed(make_run, tmp_path):
    assert PAUSE <= 1.0  # between two looks at the files, so that a change shows within two seconds
    run = make_run(environments=2, steps=10)
    with served(tmp_path) as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("GET", f"/run/{run.name}/live", headers={"Cookie": own_cookie(server)})
            answer = connection.getresponse()

            def message():
                while not (line := answer.readline()).startswith(b"data:") or not json.loads(line[5:]):
                    assert line
                return json.loads(line[5:])

            first = message()
            assert list(first["changed"]) == first["order"]
            append(run, act("hot") + "\n")
            second = message()
            assert "governor" in second["changed"]
            assert "courses" not in second["changed"]
            shutil.rmtree(run)
            assert message() == {"gone": True}
        assert ask(server, f"/run/{run.name}")[0] == 404


LATER = "Date.now = ((now) => () => now() + 40000)(Date.now)"
"""Forty seconds pass in a page, without waiting for them."""


@pytest.mark.slow
@pytest.mark.install  # CI runs it for every change
def test_a_page_says_that_its_server_is_silent_and_goes_on_when_it_speaks_again(make_run, browser, tmp_path):
    """A stopped process keeps its connections open: nothing but the missing heartbeats tells."""
    run = make_run(environments=2, steps=4)
    with ServerBeside(tmp_path, f"/run/{run.name}") as beside:
        page = browser.open(beside.lines()[1])

        def until(text):
            script = f"document.getElementById('connection').textContent.startsWith('{text}')"
            page.evaluate(f"new Promise((tell) => setInterval(() => {script} && tell(), 20))")

        until("up to date")
        os.kill(beside.pid, signal.SIGSTOP)
        try:
            page.evaluate(LATER)
            until("no word from the server for 4")
        finally:
            os.kill(beside.pid, signal.SIGCONT)
        until("up to date")
        page.evaluate("location = 'about:blank'")
