"""The page of a plan in a browser. Its data is tests/support/plan_example.cpp's, which page_probe writes."""

import os
import subprocess

import pytest


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("plan") / "plan.html")
    subprocess.run([os.environ["BRAID_PAGE_PROBE"], "plan", path], check=True)
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_loads_and_fits(opened, plan, width, dark):
    page = opened(plan, width=width, dark=dark)
    assert page.overflow() <= 0
    assert page.run("document.querySelectorAll('#scatter .point').length") == len(page.data()["layouts"])
    assert page.run("document.querySelector('#timeline canvas').height") > 100
    pixels = page.run("(() => { const canvas = document.querySelector('#timeline canvas'); return new Set("
                      "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size; })()")
    assert pixels > 10  # it is painted


def test_shows_the_numbers_of_the_plan(opened, plan):
    page = opened(plan)
    data = page.data()
    best = data["layouts"][data["best"]]
    cards = dict(text.split("\n")[::-1] for text in page.texts("#figures .card"))
    assert cards[f"per iteration, ± {1e3 * best['spread_s']:.3g} ms"] == f"{best['iteration_s']:.3g} s"
    assert cards["memory, of 72 GB"] == f"{best['needed_bytes'] / 1e9:.3g} GB"
    assert cards["bounds it"] == best["bound_by"]
    rows = page.run("[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[0].innerText)")
    assert [int(number) - 1 for number in rows] == sorted(range(len(rows)), key=lambda i: data["layouts"][i]["iteration_s"])
    stages = page.texts("#memory .bar-name span")
    assert [text for text in stages] == [f"{stage['needed_bytes'] / 1e9:.3g} GB" for stage in best["memory"]]


def chosen(page):
    return int(page.text("#chosen").removeprefix("Layout ").split(":")[0])


def test_pointing_at_a_layout_tells_about_it_and_a_click_chooses_it(opened, plan):
    page = opened(plan)
    layout = page.data()["layouts"][50]
    page.hover('.point[data-number="51"]')
    text = page.text(".tooltip")
    assert text.startswith(f"51. {layout['name']}") and "does not fit" in text and f"bound by {layout['bound_by']}" in text
    assert f"{layout['device_bytes'] / 1e9:.3g} GB with the allocator's slack" in text
    page.click('.point[data-number="51"]')
    assert chosen(page) == 51
    assert page.run("document.querySelector('#timeline')") is None  # it has none
    assert page.text(".sortable tr.selected td") == "51"


def test_the_keyboard_goes_from_layout_to_layout(opened, plan):
    page = opened(plan)
    page.run("document.querySelector('#scatter svg').focus()")
    page.press("ArrowRight")
    number = int(page.text(".tooltip").split(".")[0])
    assert number != 1
    page.press("Enter")
    assert chosen(page) == number
    page.run("document.querySelector('.sortable tbody tr').focus()")
    page.press("Enter")
    assert chosen(page) == 1


def column(page, index):
    return page.run(f"[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[{index}].innerText)")


def test_the_table_sorts_and_filters(opened, plan):
    page = opened(plan)
    layouts = page.data()["layouts"]
    page.click(".sortable th:nth-child(7) button")  # memory
    least = min(range(len(layouts)), key=lambda i: layouts[i]["needed_bytes"])
    assert layouts[int(column(page, 0)[0]) - 1]["needed_bytes"] == layouts[least]["needed_bytes"]
    page.click(".sortable th:nth-child(7) button")
    assert layouts[int(column(page, 0)[0]) - 1]["needed_bytes"] == max(layout["needed_bytes"] for layout in layouts)
    page.click("#fitting")
    assert page.text("#count") == f"{sum(layout['fits'] for layout in layouts)} of {len(layouts)}"
    page.run("(() => { const input = document.getElementById('filter'); input.value = 'tp 2 recompute';"
             "input.dispatchEvent(new Event('input')); })()")
    names = column(page, 1)
    assert names and all("tp 2" in name for name in names)
    assert all("recompute full" in settings for settings in column(page, 2))  # not in what the layout is called
    assert page.run("document.querySelectorAll('#scatter .point').length") == len(names)


def shown_range(page):
    return [float(page.run(f"document.querySelector('#timeline canvas').dataset.{end}")) for end in ("from", "to")]


def test_the_timeline_zooms_and_moves(opened, plan):
    page = opened(plan)
    best = page.data()["layouts"][0]
    assert shown_range(page) == pytest.approx([0, best["iteration_s"]])
    page.click('#timeline button[aria-label="zoom in"]')
    begin, end = shown_range(page)
    assert [begin, end] == pytest.approx([best["iteration_s"] / 4, best["iteration_s"] * 3 / 4])
    x, y = page.center_of("#timeline canvas")
    page.drag((x, y), (x + 60, y))
    moved_begin, moved_end = shown_range(page)
    assert moved_begin < begin and moved_end - moved_begin == pytest.approx(end - begin)
    page.run("document.querySelector('#timeline canvas').focus()")
    page.press("ArrowRight")
    assert shown_range(page)[0] > moved_begin
    page.press("+")
    assert shown_range(page)[1] - shown_range(page)[0] == pytest.approx((end - begin) / 2)
    page.press("Escape")
    assert shown_range(page) == pytest.approx([0, best["iteration_s"]])
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-100, modifiers=2)  # Ctrl
    page.settle()
    assert shown_range(page)[1] - shown_range(page)[0] < best["iteration_s"]


def test_pointing_at_a_span_tells_about_it(opened, plan):
    page = opened(plan)
    timeline = page.data()["layouts"][0]["timeline"]
    page.center_of("#timeline canvas")
    x, y = page.run("(() => { const box = document.querySelector('#timeline canvas').getBoundingClientRect();"
                    "return [box.x + Math.min(210, box.width * 0.24) + 6, box.y + 11]; })()")
    page.mouse("mouseMoved", x, y)
    text = page.text(".tooltip")
    first = timeline["spans"][0]
    assert text.split("\n")[1] == "images forward"
    assert text.endswith(timeline["tracks"][0])
    assert f"{1e3 * (first[4] - first[3]):.3g} ms" in text
