"""The server of a review: who gets in, what it gives, and that nothing confirmed is lost."""

import io
import json
import shutil
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.program import run, run_json
from forks import PATIENCE
from review.reviewed import CLASSES, EVIL_FILE, Server, label_rows, serving, truth
from selfadapt.review.previews import LARGE, THUMBNAIL, ImageViews, NoPreview, ValueViews, views_of
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report
from selfadapt.runs.inspect.review_features import FeatureProcess, compute_features


def _lines(run_folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_folder / "decisions.jsonl").read_text().splitlines()]


def test_who_gets_in(idle: Server) -> None:
    assert idle.ask("")[0] == 200
    for token in ("", "x", idle.token[:-1], idle.token + "x", idle.token.swapcase()):
        status, headers, _ = idle.ask("api/about", token=token)
        assert status == 403, token
        assert "default-src 'none'" in headers["content-security-policy"], "refusals carry the headers, too"
    status, headers, _ = idle.ask("", token=f"?token={idle.token}"[:-1])
    assert status == 403
    port = idle.host.partition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{port}",
        "",
    ):
        assert idle.ask("api/about", headers={"Host": host})[0] == 403, host
    assert idle.ask("api/about", headers={"Host": f"localhost:{port}"})[0] == 200


def test_the_printed_address_leads_to_the_page(idle: Server) -> None:
    connection = socket.create_connection(("127.0.0.1", int(idle.host.partition(":")[2])))
    connection.sendall(f"GET /?token={idle.token} HTTP/1.1\r\nHost: {idle.host}\r\nConnection: close\r\n\r\n".encode())
    answer = b"".join(iter(lambda: connection.recv(4096), b""))
    connection.close()
    assert answer.startswith(b"HTTP/1.1 303")
    assert f"location: /{idle.token}/".encode() in answer
    assert b"set-cookie" not in answer


def test_only_the_page_itself_changes_something(server: Server, shapes_run: Path) -> None:
    decision = {"what": "keep", "rows": [0]}
    for origin in ("http://evil.example", "null", f"https://{server.host}", "http://127.0.0.1:1"):
        assert server.ask("api/decide", decision, headers={"Origin": origin})[0] == 403, origin
    assert server.ask("api/decide", decision, headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert server.ask("api/decide", decision, headers={"Content-Type": "text/plain"})[0] == 415
    assert server.ask("api/decide", method="GET")[0] == 405
    assert _lines(shapes_run) == []
    assert server.ask("api/decide", decision, headers={"Origin": f"http://{server.host}"})[0] == 200
    assert len(_lines(shapes_run)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "image/../../../etc/passwd",
        "image//etc/passwd/small",
        "image/99999/small",
        "image/-1/small",
        "image/0/huge",
        "static/../server.py",
        "static/%2e%2e%2fserver.py",
        "static/nothing.js",
        "run.json",
        "labels.csv",
    ],
)
def test_nothing_else_is_served(idle: Server, path: str) -> None:
    assert idle.ask(path)[0] == 404


def test_images_are_those_of_the_files(idle: Server) -> None:
    rows = label_rows(idle.run)
    evil = next(row for row, own in enumerate(rows) if own["path"].endswith(EVIL_FILE))
    for row in (0, evil, len(rows) - 1):
        status, headers, body = idle.ask(f"image/{row}/small")
        assert (status, headers["content-type"]) == (200, "image/png")
        shown = np.array(Image.open(io.BytesIO(body)).convert("L"))
        np.testing.assert_array_equal(shown, np.array(Image.open(rows[row]["path"])))


def test_a_photo_is_shown_at_its_own_size_up_to_the_limit(idle: Server, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 3000, 3), np.uint8)
    Image.fromarray(pixels[:, :400]).save(tmp_path / "small.jpg")
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    folder = RunFolder(idle.run)
    paths = np.array([str(tmp_path / "small.jpg"), str(tmp_path / "wide.png")], object)
    views = views_of(folder, replace(read_report(folder), paths=paths))
    assert isinstance(views, ImageViews)
    sizes = [Image.open(io.BytesIO(views.image(row, side)[0])).size for row in (0, 1) for side in (THUMBNAIL, LARGE)]
    assert sizes == [(256, 192), (400, 300), (256, 26), (2048, 205)]


def test_the_page_may_load_nothing_from_elsewhere(idle: Server) -> None:
    _, headers, body = idle.ask("")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["img-src"] == policy["connect-src"] == "'self'"
    assert headers["referrer-policy"] == "no-referrer"
    assert b"http" not in body.lower().replace(b"http-equiv", b"")
    for name in ("main.js", "api.js", "samples.js", "grid.js", "one.js", "measure.js", "dialogs.js", "page.css"):
        status, headers, content = idle.ask(f"static/{name}")
        assert status == 200
        assert headers["content-type"].startswith("text/css" if name.endswith("css") else "text/javascript")
        assert b"innerHTML" not in content
        assert b"http://" not in content


def test_it_listens_on_this_machine_alone(idle: Server) -> None:
    """On one address alone: 127.0.0.2 is this machine too, and whoever listens on every address answers there."""
    port = int(idle.host.partition(":")[2])
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        socket.create_connection(("127.0.0.2", everywhere.getsockname()[1]), timeout=PATIENCE).close()
    with pytest.raises((ConnectionRefusedError, TimeoutError)):
        socket.create_connection(("127.0.0.2", port), timeout=2)


def test_a_decision_is_on_the_disk_before_it_is_confirmed(server: Server, shapes_run: Path) -> None:
    rows = label_rows(shapes_run)
    for number, (what, label) in enumerate((("accept", None), ("keep", None), ("choose", 2), ("remove", None))):
        answer = server.json("api/decide", {"what": what, "rows": [number], "label": label})
        expected = {"accept": rows[number]["suggested"], "keep": rows[number]["given"], "choose": CLASSES[2]}.get(what)
        line = _lines(shapes_run)[-1]
        assert line["labels"] == {rows[number]["id"]: expected}
        assert (line["what"], line["line"]) == (what, number + 1)
        assert answer["rows"][str(number)]["decided"] == (-2 if expected is None else CLASSES.index(expected))
    undone = server.json("api/undo", {})
    assert undone["undone"]["what"] == "remove"
    assert undone["rows"] == {"3": {"decided": None}}
    assert server.json("api/samples", {"rows": [3]})["samples"][0]["decided"] is None


@pytest.mark.parametrize(
    "content",
    [
        {"what": "accept", "rows": []},
        {"what": "accept", "rows": [10**6]},
        {"what": "accept", "rows": ["0"]},
        {"what": "accept", "rows": [True]},
        {"what": "accept"},
        {"what": "import", "rows": [0]},
        {"what": "choose", "rows": [0]},
        {"what": "choose", "rows": [0], "label": 3},
        {"what": "choose", "rows": [0], "label": True},
        {"what": "accept", "rows": [0, 1], "queue": "measure"},
        {"what": "accept", "rows": [0], "queue": "play"},
        [1],
    ],
)
def test_what_makes_no_sense_changes_nothing(idle: Server, content: object) -> None:
    status, _, body = idle.ask("api/decide", content)
    assert status == 400
    assert json.loads(body)["error"]
    assert _lines(idle.run) == []


def test_filters(server: Server, shapes_run: Path) -> None:
    rows = label_rows(shapes_run)
    suspects = [row for row, own in enumerate(rows) if own["suspect"] == "1"]

    def shown(**query: object) -> list[int]:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        found: list[int] = server.json(f"api/rows?{words}")["rows"]
        return found

    assert shown() == suspects
    assert shown(show="all") == list(range(len(rows)))
    assert shown(split="test") == [row for row in suspects if rows[row]["part"] == "test"]
    first = rows[suspects[0]]
    pair = {"given": CLASSES.index(first["given"]), "suggested": CLASSES.index(first["suggested"])}
    same = [row for row in suspects if all(rows[row][name] == first[name] for name in pair)]
    assert shown(**pair) == same
    assert shown(show="all", search="TEST/3/") == [row for row, own in enumerate(rows) if "test/3/" in own["id"]]
    by_class = sorted(
        suspects, key=lambda row: (CLASSES.index(rows[row]["given"]), CLASSES.index(rows[row]["suggested"]))
    )
    assert shown(sort="class") == by_class
    server.json("api/decide", {"what": "accept", "rows": same})
    assert shown() == [row for row in suspects if row not in same]
    assert shown(state="decided") == same
    assert server.ask("api/rows?show=nothing")[0] == 400
    assert server.ask("api/rows?colour=red")[0] == 400
    assert server.json("api/about")["pairs"][0][2] >= server.json("api/about")["pairs"][-1][2]


def test_two_pages_see_each_others_work(server: Server) -> None:
    """Two clients decide at once; afterwards both know of everything."""
    line = server.json("api/about")["line"]

    def work(rows: range) -> None:
        for row in rows:
            server.json("api/decide", {"what": "keep", "rows": [row]})

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (range(30), range(30, 60))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = server.json(f"api/changes?after={line}")
    assert sorted(map(int, changes["rows"])) == list(range(60))
    assert changes["line"] == line + 60
    server.json("api/undo", {})
    later = server.json(f"api/changes?after={changes['line']}")
    assert [own["decided"] for own in later["rows"].values()] == [None]


def test_one_review_at_a_time_and_how_it_ends(server: Server, shapes_run: Path) -> None:
    second = run("review", shapes_run, "--no-browser", folder=shapes_run.parent)
    assert second.returncode == 2
    assert "another review" in second.stderr
    server.json("api/decide", {"what": "remove", "rows": [0]})
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port))) as client:  # a request that breaks off
        head = f"POST /{server.token}/api/decide HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
    server.json("api/about")
    code, words, errors = server.stop()
    assert (code, errors) == (0, "")
    first, last = words.splitlines()
    assert json.loads(first) == {"url": server.url}
    assert json.loads(last) == {"decisions": 1}
    assert (shapes_run / "decisions.csv").read_text().splitlines()[1].count("removed") == 1
    assert "1 removed" in (shapes_run / "report.html").read_text()
    assert not any(server.token in path.read_text(errors="ignore") for path in shapes_run.rglob("*") if path.is_file())


def test_over_ssh_it_prints_the_tunnel(shapes_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5000 10.0.0.2 22")
    with serving(shapes_run) as server:
        port = server.host.partition(":")[2]
        assert f"ssh -L {port}:127.0.0.1:{port} " in server.stop()[2]


def test_similar_samples_are_the_nearest_by_features(shapes_run: Path) -> None:
    """Features are taken in the background, by a process of its own, as there are none yet."""
    shutil.rmtree(shapes_run / "review")
    with serving(shapes_run) as server:
        deadline = time.monotonic() + PATIENCE
        while "reason" in (found := server.json("api/similar/0")):
            assert "a moment" in found["reason"], found
            assert time.monotonic() < deadline
            time.sleep(0.3)
    rows = label_rows(shapes_run)
    about = json.loads((shapes_run / "review" / "features.json").read_text())
    features = dict(zip(about["ids"], np.load(shapes_run / "review" / "features.npy").astype(np.float64), strict=True))
    for name in ("given", "suggested"):
        trusted = [
            row
            for row, own in enumerate(rows)
            if own["part"] == "train" and own["suspect"] == "0" and own["given"] == rows[0][name] and row != 0
        ]
        likeness = {row: features[rows[row]["id"]] @ features[rows[0]["id"]] for row in trusted}
        nearest = sorted(likeness.values(), reverse=True)[: len(found[name])]
        assert [likeness[row] for row in found[name]] == pytest.approx(nearest, abs=1e-3)
    assert len(found["given"]) == 6


def test_features_are_computed_with_progress_and_a_reason_if_they_fail(shapes_run: Path, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    compute_features(RunFolder(shapes_run), on_progress=lambda count, total: done.append((count, total)))
    assert done == sorted(done)
    assert done[-1] == (225, 225)
    assert len(done) == 3, "one for each split"
    for name in ("fine", "broken"):
        (tmp_path / name).mkdir()
    process = FeatureProcess(RunFolder(shapes_run), tmp_path / "fine")
    while process.running:
        assert process.progress in ("", "66 %", "80 %", "100 %")
        time.sleep(0.05)
    assert (process.progress, process.failure) == ("100 %", None)
    process = FeatureProcess(RunFolder(tmp_path / "gone"), tmp_path / "broken")
    while process.running:
        time.sleep(0.05)
    assert process.progress == ""
    assert "gone" in (process.failure or "")
    process.end()


def test_the_measure_queue(server: Server, shapes_run: Path) -> None:
    """Drawn once, in an order that the seed fixes; reviewed in order it measures the labels of a split."""
    rows = label_rows(shapes_run)
    before = server.json("api/measured")
    assert before["suggestions"] is None
    drawn = server.json("api/draw", {"of": "suggestions"})["rows"]
    suspects = [row for row, own in enumerate(rows) if own["suspect"] == "1" and own["part"] == "train"]
    assert sorted(drawn) == suspects
    assert before["population"] == len(suspects)
    assert drawn != suspects
    assert server.json("api/draw", {"of": "suggestions"})["rows"] == drawn
    tests = server.json("api/draw", {"of": "test"})["rows"]
    for row in tests:
        label = CLASSES.index(truth(rows[row]["id"]))
        server.json("api/decide", {"what": "choose", "rows": [row], "label": label, "queue": "measure"})
    part = next(own for own in server.json("api/measured")["splits"] if own["part"] == "test")
    wrong = [rows[row]["given"] != truth(rows[row]["id"]) for row in tests]
    right = [rows[row]["predicted"] == truth(rows[row]["id"]) for row in tests]
    assert part["sampled"] == 45
    assert part["wrong"] == pytest.approx({"value": np.mean(wrong), "low": np.mean(wrong), "high": np.mean(wrong)})
    assert part["accuracy_true"]["value"] == pytest.approx(np.mean(right))
    assert part["accuracy_reviewed"] == pytest.approx(np.mean(right)), "all of them were decided"
    result = json.loads((shapes_run / "run.json").read_text())["result"]
    assert part["accuracy_given"] == pytest.approx(result["test_accuracy"])


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda run: (run / "labels.csv").unlink(), "was not audited yet"),
        (lambda run: (run / "run.json").unlink(), "is not a run folder"),
        (lambda run: (run / "decisions.jsonl").write_text("{}\n"), "line 1 is damaged"),
    ],
)
def test_what_cannot_be_reviewed_is_said(shapes_run: Path, prepare: "object", words: str) -> None:
    prepare(shapes_run)  # type: ignore[operator]
    result = run("review", shapes_run, "--no-browser", folder=shapes_run.parent)
    assert result.returncode == 2
    assert words in result.stderr


def test_a_port_that_is_taken(shapes_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("review", shapes_run, "--no-browser", "--port", port, folder=shapes_run.parent)
    assert result.returncode == 2
    assert f"--port {port} cannot be used" in result.stderr


def test_values_of_a_table_are_shown_as_they_stand(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lines = ["weight,colour,label"]
    lines += [f"{generator.normal() + 4 * (k % 2):.3f},{('red', 'blue')[k % 2]},{'ab'[k % 2]}" for k in range(80)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    run_json("train", "table.csv", "--out", "run", folder=tmp_path)
    rows = label_rows(tmp_path / "run")
    with serving(tmp_path / "run") as server:
        assert server.json("api/about")["images"] is False
        number = int(rows[5]["path"].removeprefix("row "))
        expected = list(zip(lines[0].split(","), lines[number - 1].split(","), strict=True))
        assert [tuple(pair) for pair in server.json("api/values/5")["values"]] == expected
        assert server.ask("image/5/small")[0] == 404
    (tmp_path / "table.csv").rename(tmp_path / "moved.csv")
    with serving(tmp_path / "run") as server:
        status, _, body = server.ask("api/values/5")
        assert (status, "table.csv" in json.loads(body)["error"]) == (404, True)


@pytest.mark.parametrize("named", [True, False])
def test_rows_of_a_table_are_found_by_id_wherever_they_stand(tmp_path: Path, named: bool) -> None:
    """What counts is the line at which a sample stood in the training, of which labels.csv tells."""
    generator = np.random.default_rng(0)
    head, *lines = [("id" if named else "colour") + ",weight,owner,kind"] + [
        f"{k if named else ('red', 'blue')[k % 2]},{generator.normal() + 4 * (k % 2):.6f},{k // 4},{'ab'[k % 2]}"
        for k in range(80)
    ]
    table, columns = tmp_path / "table.csv", ("--label-column", "kind", "--group-column", "owner")
    table.write_text("\n".join([head, *lines]) + "\n")
    run_json("train", "table.csv", *columns, "--out", "run", folder=tmp_path)
    new = f"{'new' if named else 'red'},9.5,20,a"
    table.write_text("\n".join([head, new, *reversed(lines[1:])]) + "\n")  # one is gone, one is new, all have moved
    folder = RunFolder(tmp_path / "run")
    report = read_report(folder)
    paths = report.paths.tolist()
    views, gone = views_of(folder, report), paths.index("row 2")
    assert isinstance(views, ValueViews)
    for row, path in enumerate(paths):
        if row != gone:
            expected = lines[int(path.removeprefix("row ")) - 2].split(",")
            assert views.values(row) == list(zip(head.split(","), expected, strict=True))
    with pytest.raises(NoPreview, match=f"no longer has a row with the id {report.ids[gone]}"):
        views.values(gone)


@pytest.mark.parametrize(
    "path",
    ["changes?after=inf", "changes?after=nan", "changes?after=1e400", "measured?depth=1", "about?x=1", "rows?x="],
)
def test_odd_questions_are_answered_in_words(idle: Server, path: str) -> None:
    status, _, body = idle.ask(f"api/{path}")
    assert status == 400
    assert json.loads(body)["error"]


def test_many_at_once_leave_what_was_decided_and_then_nothing_can_be_drawn(server: Server, shapes_run: Path) -> None:
    rows = label_rows(shapes_run)
    suspects = [row for row, own in enumerate(rows) if own["suspect"] == "1"]
    server.json("api/decide", {"what": "remove", "rows": suspects[:1]})
    done = server.json("api/decide", {"what": "accept", "rows": suspects})
    assert sorted(map(int, done["rows"])) == suspects[1:]
    assert server.json("api/samples", {"rows": suspects[:1]})["samples"][0]["what"] == "remove"
    assert server.ask("api/decide", {"what": "keep", "rows": suspects})[0] == 400
    assert server.json("api/rows?state=any")["decided"] == suspects
    status, _, body = server.ask("api/draw", {"of": "suggestions"})
    assert (status, "nothing to draw" in json.loads(body)["error"]) == (409, True)
    drawn = shapes_run / "review" / "suggestions.csv"
    assert not drawn.exists()
    drawn.write_text("id,given,suggested,depth,turn\n")  # as an earlier version left it
    assert server.json("api/measured")["population"] == 0
    assert server.stop()[0] == 0
    made = run("labels", shapes_run, "--precision", "0", folder=shapes_run.parent)
    assert (made.returncode, "none is left to accept unreviewed" in made.stdout) == (0, True)
    drawn.write_text("id,given,suggested,depth,turn\na,bar,dot,1,first\n")
    for command in (("labels", shapes_run, "--precision", "0.5"), ("review", shapes_run, "--no-browser")):
        failed = run(*command, folder=shapes_run.parent)
        assert (failed.returncode, "turn 'first' is not a number" in failed.stderr) == (2, True)
