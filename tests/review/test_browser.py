"""The review page in a real browser: keys and mouse, undo, two tabs, a killed server, hostile names, everybody."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forks import PATIENCE
from review.reviewed import CLASSES, EVIL_CLASS, EVIL_FILE, Server, label_rows, serving
from selfadapt.review.journal import Journal
from selfadapt.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


def open_page(browser: "Browser", server: Server, **context: Any) -> "Page":
    page = browser.new_context(viewport={"width": 1200, "height": 800}, **context).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: troubles.append(f"dialog {dialog.message}"))
    page.on("request", lambda own: troubles.append(own.url) if f"//{server.host}/" not in own.url else None)
    page.troubles = troubles  # type: ignore[attr-defined]
    page.goto(server.url)
    page.wait_for_selector(".cell p")
    return page


def _decided(page: "Page") -> int:
    words = page.inner_text("#progress")
    return int(words.split("; ")[1].split(" ")[0].replace(",", ""))


def _wait_decided(page: "Page", number: int) -> None:
    page.wait_for_function(
        "number => document.getElementById('progress').textContent.includes(`; ${number} decisions`)", arg=number
    )


def _press(page: "Page", key: str) -> None:
    """A key, once the sample can be seen: one at a time, a decision about an unseen one is not taken."""
    page.wait_for_function(
        """() => { const one = document.getElementById('one');
            return one.hidden || (one.getAttribute('aria-busy') !== 'true' && one.querySelector('.facts')); }"""
    )
    page.keyboard.press(key)


def _wait_shown(page: "Page", number: int) -> None:
    page.wait_for_function(
        "number => document.getElementById('select-all').textContent === `Select all ${number}`", arg=number
    )


def _standing(run: Path) -> dict[str, str | None]:
    decisions = Journal.read(RunFolder(run).journal_file).decisions
    return {sample_id: decision.label for sample_id, decision in decisions.items()}


def test_twenty_by_keys_and_mouse_undo_three_and_reload(browser: "Browser", server: Server) -> None:
    rows = label_rows(server.run)
    suspects = [own for own in rows if own["suspect"] == "1"]
    page = open_page(browser, server)
    page.focus("#grid")
    wanted: dict[str, str | None] = {}
    for number in range(20):
        own = suspects[number]
        what = ("accept", "keep", "remove", "choose")[number % 4]
        if what == "choose":
            _press(page, "c")
            page.keyboard.type("dot")
            page.keyboard.press("Enter")
        elif number < 10:
            _press(page, {"accept": "a", "keep": "k", "remove": "x"}[what])
        else:
            _press(page, "Shift")
            page.click(f"#{what}")
        wanted[own["id"]] = {"accept": own["suggested"], "keep": own["given"], "choose": "dot"}.get(what)
        _wait_decided(page, number + 1)
        if number == 4:
            page.keyboard.press("o")  # on with one at a time
    assert _standing(server.run) == wanted
    for number in range(3):
        page.keyboard.press("u")
        _wait_decided(page, 19 - number)
        assert "Undone" in page.inner_text("#status")
        wanted.popitem()
    assert _standing(server.run) == wanted

    page.reload()
    page.wait_for_selector(".cell p")
    assert _decided(page) == 17
    page.select_option("#state", "decided")
    page.wait_for_function("() => document.querySelectorAll('.cell.done').length === 17")
    shown = {cell.get_attribute("title") for cell in page.query_selector_all(".cell .id")}
    assert shown == set(wanted)
    page.keyboard.press("u")
    _wait_decided(page, 16)
    assert page.troubles == []  # type: ignore[attr-defined]


def test_a_killed_server_loses_nothing_that_was_confirmed(browser: "Browser", shapes_run: Path) -> None:
    with serving(shapes_run) as server:
        page = open_page(browser, server)
        page.select_option("#show", "all")
        _wait_shown(page, 225)
        page.focus("#grid")
        for number in range(100):
            page.keyboard.press("k")
            if number == 40:
                server.kill()
        page.wait_for_selector("#status.alarm")
        assert "nothing is lost" in page.inner_text("#status")
        confirmed = _decided(page)
        assert 0 < confirmed < 100
    with serving(shapes_run) as server:
        page = open_page(browser, server)
        assert confirmed <= _decided(page) <= confirmed + 1
        rows = label_rows(shapes_run)
        assert set(_standing(shapes_run)) >= {rows[number]["id"] for number in range(confirmed)}


def test_two_tabs_at_once(browser: "Browser", server: Server) -> None:
    first = open_page(browser, server)
    second = first.context.new_page()
    second.goto(server.url)
    second.wait_for_selector(".cell p")
    for page in (first, second):
        page.select_option("#show", "all")
        _wait_shown(page, 225)
    second.click("#cell-12")
    for _ in range(4):
        first.focus("#grid")
        first.keyboard.press("k")
        second.focus("#grid")
        second.keyboard.press("x")
    for page in (first, second):
        _wait_decided(page, 8)
        page.wait_for_function("() => document.querySelectorAll('.cell.done').length === 8")
    assert "removed" in first.inner_text("#cell-12")
    assert "kept" in second.inner_text("#cell-0")


def test_hostile_names_do_nothing(browser: "Browser", server: Server) -> None:
    page = open_page(browser, server)
    page.select_option("#show", "all")
    page.fill("#search", "<img src=x")
    _wait_shown(page, 1)
    page.wait_for_selector(".cell p")
    assert EVIL_FILE in page.inner_text(".cell .id")
    page.dblclick(".cell")
    page.wait_for_selector("#one .facts")
    assert EVIL_FILE in page.inner_text("#one .facts")
    _press(page, "c")
    page.keyboard.type("<scr")
    assert page.inner_text("#class-list").strip() == EVIL_CLASS
    page.keyboard.press("Enter")
    _wait_decided(page, 1)
    assert list(_standing(server.run).values()) == [EVIL_CLASS]
    assert EVIL_CLASS in page.inner_text("#pair")
    code, _, _ = server.stop()
    assert code == 0
    page.wait_for_selector("#status.alarm")
    assert page.query_selector_all("main img[src='x'], main script") == []
    assert page.troubles == []  # type: ignore[attr-defined]
    page.goto((server.run / "report.html").as_uri())
    assert "Reviewed labels" in page.inner_text("body")
    assert page.query_selector_all("script, img[src='x']") == []


def test_a_whole_pair_at_once_with_the_count_before(browser: "Browser", server: Server) -> None:
    page = open_page(browser, server)
    given, suggested, count = server.json("api/about")["pairs"][0]
    page.select_option("#pair", f"{given},{suggested}")
    _wait_shown(page, count)
    page.click("#select-all")
    page.click("#accept")
    assert page.inner_text("#confirm-question") == f"Accept the suggestion for {count} labels?"
    page.click("#confirm button[value=no]")
    assert _standing(server.run) == {}
    page.keyboard.press("Control+a")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    _wait_decided(page, count)
    assert set(_standing(server.run).values()) == {CLASSES[suggested]}
    page.keyboard.press("u")
    _wait_decided(page, 0)

    page.select_option("#pair", "")
    _wait_shown(page, server.json("api/about")["errors"])
    page.click("#cell-1")
    page.click("#cell-4", modifiers=["Shift"])
    page.keyboard.press("Shift+ArrowRight")
    assert "5 selected" in page.inner_text("#status")
    page.click("#cell-9", modifiers=["Control"])
    page.keyboard.press("x")
    assert page.inner_text("#confirm-question") == "Remove 6 samples?"
    page.keyboard.press("Enter")
    _wait_decided(page, 6)


def test_measuring(browser: "Browser", server: Server) -> None:
    page = open_page(browser, server)
    page.click("#queue-measure")
    page.click("#draw")
    page.wait_for_selector("#one .facts")
    drawn = server.json("api/draw", {"of": "suggestions"})["rows"]
    rows = label_rows(server.run)
    assert rows[drawn[0]]["id"] in page.inner_text("#one .facts")
    assert page.is_disabled("#skip")
    for number in range(3):
        _press(page, "a")
        page.wait_for_function(
            "number => document.getElementById('measure').textContent.includes(`${number} of `)", arg=number + 1
        )
    assert "3 right" in page.inner_text("#measure")
    _press(page, "Shift")
    assert rows[drawn[3]]["id"] in page.inner_text("#one .facts")
    page.keyboard.press("u")
    page.wait_for_function("() => document.getElementById('measure').textContent.includes('2 right')")
    assert rows[drawn[2]]["id"] in page.inner_text("#one .facts")
    lines = [json.loads(line) for line in (server.run / "decisions.jsonl").read_text().splitlines()]
    assert [line.get("queue") for line in lines] == ["measure", "measure", "measure", None]
    page.select_option("#measure-of", "test")
    page.click("#draw")
    page.wait_for_selector("#sampled")
    page.wait_for_function("() => document.querySelector('#one .facts').innerText.startsWith('1 of 45')")
    _press(page, "k")
    page.wait_for_function("() => document.getElementById('sampled').textContent.startsWith('1 of 45')")
    assert page.troubles == []  # type: ignore[attr-defined]


def test_what_nobody_could_see_is_not_decided(browser: "Browser", server: Server) -> None:
    """One at a time, of keys pressed in one breath only the first counts: the next sample is not there yet."""
    page = open_page(browser, server)
    _press(page, "o")
    _press(page, "Shift")
    page.evaluate(
        """() => { for (let k = 0; k < 5; k++)
            document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true })); }"""
    )
    _wait_decided(page, 1)
    _press(page, "a")
    _wait_decided(page, 2)
    assert len(_standing(server.run)) == 2


def test_one_at_a_time_shows_similar_samples_of_both_classes(browser: "Browser", server: Server) -> None:
    page = open_page(browser, server)
    page.keyboard.press("Enter")
    page.wait_for_selector(".strip img")
    assert [len(strip.query_selector_all("img")) for strip in page.query_selector_all(".strip")] == [6, 6]
    page.wait_for_function("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    first = page.inner_text("#one .facts")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("words => document.querySelector('#one .facts').innerText !== words", arg=first)
    assert page.inner_text("#one .facts").startswith("2 of ")


def test_without_a_mouse_and_with_a_screen_reader(browser: "Browser", server: Server) -> None:
    """Everything has a name, the tab key reaches it in order, and the status is announced."""
    page = open_page(browser, server)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [role]')].filter(own => {
            const label = own.getAttribute('aria-label') ?? '';
            const named = own.getAttribute('aria-labelledby') ?? '';
            return !(label || named || own.textContent.trim() || own.labels?.length || own.id === 'status');
        }).map(own => own.outerHTML)"""
    )
    assert nameless == []
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    for wanted in ("queue-work", "view-one", "show", "pair", "search", "select-all", "grid", "accept", "undo"):
        assert wanted in reached
    assert reached.index("queue-work") < reached.index("show") < reached.index("grid") < reached.index("accept")
    page.focus("#grid")
    page.keyboard.press("ArrowRight")
    active = page.get_attribute("#grid", "aria-activedescendant")
    assert active == "cell-1"
    words = page.get_attribute(f"#{active}", "aria-label")
    assert words is not None
    assert "given " in words
    assert "undecided" in words
    page.keyboard.press("k")
    _wait_decided(page, 1)
    assert page.get_attribute("#status", "aria-live") == "polite"
    assert "kept" in page.inner_text("#status")
    page.keyboard.press("?")
    assert page.evaluate("document.activeElement.closest('dialog').id") == "keys"
    page.keyboard.press("Escape")
    assert page.query_selector("dialog[open]") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(browser: "Browser", idle: Server, scheme: str) -> None:
    """WCAG's contrast of 4.5 for every text on its ground."""
    page = open_page(browser, idle, color_scheme=scheme)
    palette = page.evaluate(
        """() => { const style = getComputedStyle(document.documentElement);
            return Object.fromEntries(['ink', 'soft', 'page', 'card', 'accent', 'on-accent', 'chosen', 'good', 'warn']
                .map(name => [name, style.getPropertyValue(`--${name}`).trim()])); }"""
    )

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
        channels = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ink, grounds in (
        ("ink", ("page", "card", "chosen")),
        ("soft", ("page", "card", "chosen")),
        ("accent", ("page", "card")),
        ("on-accent", ("accent",)),
        ("good", ("card", "chosen")),
        ("warn", ("card", "chosen")),
    ):
        for ground in grounds:
            bright, dark = sorted((luminance(palette[ink]), luminance(palette[ground])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def test_on_a_phone_nothing_sticks_out(browser: "Browser", idle: Server) -> None:
    page = open_page(browser, idle)
    page.set_viewport_size({"width": 390, "height": 780})
    for view in ("#view-grid", "#view-one", "#queue-measure"):
        page.click(view)
        time.sleep(0.2)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.documentElement.scrollHeight") <= 780
    box = page.locator("#accept").bounding_box()
    assert box is not None
    assert box["height"] >= 40, "large enough for a thumb"
