"""`braid report` in a browser: what it shows is what the runs' files say, and its controls work."""

import json
import os
import subprocess

import pytest
import runs

BRAID = os.environ["BRAID"]


def report(folder, *names):
    path = str(folder / "report.html")
    subprocess.run([BRAID, "report", *(str(folder / name) for name in names), "--html", path], check=True,
                   stdout=subprocess.DEVNULL)
    return path


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    runs.make_run(folder / "base")
    return report(folder, "base")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    runs.make_run(folder / "base")
    runs.make_failed_run(folder / "failed")
    runs.make_run(folder / "other", scale=0.93, lr="0.002")
    return report(folder, "base", "failed", "other")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_loads_and_fits(opened, one, three, width, dark):
    for path in (one, three):
        page = opened(path, width=width, dark=dark)
        assert page.overflow() <= 0
        assert page.run("document.querySelectorAll('.chart svg .curve').length") >= 7
        background = page.run("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 22, 28)") == dark


def test_shows_the_numbers_of_the_files(opened, one):
    page = opened(one)
    assert page.text("h1") == "Run base"
    cards = dict(text.split("\n")[::-1] for text in page.texts(".card"))
    assert cards["iterations of 400"] == "400"
    assert cards["lm loss"] == f"{runs.loss_of(400):.4f}"
    assert cards["ended"] == "all iterations done"
    assert cards["steps skipped, not finite"] == "2, 2"
    assert cards["restarts (50 iterations run again)"] == "1"
    assert cards["memory: GPU, most reserved"] == "128 MiB"
    assert cards["samples"] == "3 200"
    run = page.data()["runs"][0]
    assert run["curves"]["lm_loss"]["y"][9] == runs.loss_of(10)
    assert run["curves"]["lm_loss"]["y"][76] is None
    assert [attempt["first"] for attempt in run["attempts"]] == [1, 201]


def test_the_prediction_stands_beside_the_measurement(opened, one):
    page = opened(one)
    rows = [text for text in page.texts("tr") if text.startswith("time per iteration")]
    measured = page.data()["runs"][0]["typical"]["iteration_ms"]
    assert rows == [f"time per iteration\t430 ms\t{measured:.1f} ms\t−{100 * (1 - 430 / measured):.2f} %"]


def test_the_loss_has_marks_for_restarts_checkpoints_and_skipped_steps(opened, one):
    page = opened(one)
    titles = page.run("[...document.querySelectorAll('#chart-lm_loss .mark title')].map(node => node.textContent)")
    assert sorted(titles) == ["checkpoint of iteration 100", "checkpoint of iteration 200", "checkpoint of iteration 300",
                              "checkpoint of iteration 400", "iteration 301 was skipped", "iteration 77 was skipped",
                              "restart at iteration 201"]


def test_pointing_at_a_curve_tells_its_value(opened, one):
    page = opened(one)
    page.hover("#chart-lm_loss svg")
    text = page.text(".tooltip")
    iteration = int(text.split("\n")[0].removeprefix("iteration "))
    assert 190 < iteration < 215
    value = text.split("\n")[1].removeprefix("lm loss: ")
    assert float(value) == pytest.approx(runs.loss_of(iteration), abs=6e-4)
    page.mouse("mouseMoved", 5, 5)
    assert page.run("document.querySelector('.tooltip').hidden")


def shown_range(page, chart="chart-lm_loss"):
    return [float(page.run(f"document.querySelector('#{chart} svg').dataset.{end}")) for end in ("from", "to")]


def test_dragging_zooms_all_charts_and_a_button_shows_all(opened, one):
    page = opened(one)
    assert shown_range(page) == [1, 400]
    x, y = page.center_of("#chart-lm_loss svg")
    page.drag((x - 100, y), (x + 100, y))
    begin, end = shown_range(page)
    assert 100 < begin < 200 < end < 300
    assert shown_range(page, "chart-learning_rate") == [begin, end]
    page.run("[...document.querySelectorAll('.controls button')].find(node => node.textContent === 'show all').click()")
    assert shown_range(page) == [1, 400]


def test_the_keyboard_reads_values_and_zooms(opened, one):
    page = opened(one)
    page.run("document.querySelector('#chart-lm_loss svg').focus()")
    page.press("ArrowRight")
    first = int(page.text(".tooltip").split("\n")[0].removeprefix("iteration "))
    page.press("ArrowRight")
    assert page.text(".tooltip").split("\n")[0] == f"iteration {first + 1}"
    page.press("+")
    begin, end = shown_range(page)
    assert end - begin < 210
    page.press("Escape")
    assert shown_range(page) == [1, 400]


def test_axis_smoothing_and_scale(opened, one):
    page = opened(one)
    curve = "document.querySelector('#chart-lm_loss .curve:not(.raw)').getAttribute('d')"
    before = page.run(curve)
    page.set_slider("#smoothing", 0.9)
    assert page.run(curve) != before
    page.set_slider("#smoothing", 0)
    assert page.run(curve) == before
    page.click("#logarithmic")
    assert page.run(curve) != before
    page.run("(() => { const axis = document.getElementById('axis'); axis.value = 'samples';"
             "axis.dispatchEvent(new Event('change')); })()")
    page.settle()
    assert shown_range(page) == [8, 3200]
    page.run("(() => { const axis = document.getElementById('axis'); axis.value = 'hours';"
             "axis.dispatchEvent(new Event('change')); })()")
    page.settle()
    begin, end = shown_range(page)
    run = page.data()["runs"][0]
    assert end == pytest.approx((run["curves"]["time"]["y"][-1] - run["attempts"][0]["began"]) / 3600)


def test_bars_tell_the_time_of_a_phase(opened, one):
    page = opened(one)
    page.hover(".bar .part:nth-child(3)")
    assert "bridge wait: 355.6 ms" in page.text(".tooltip")


def test_tables_sort(opened, one):
    page = opened(one)
    kinds = "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[1].innerText)"
    assert page.run(kinds) == ["bridge", "tp", "gradients", "gradients", "bridge"]  # by exposed time
    page.click(".sortable th:nth-child(3) button")
    assert page.run(kinds) == ["gradients", "gradients", "tp", "bridge", "bridge"]
    assert page.run("document.querySelector('.sortable th:nth-child(3)').getAttribute('aria-sort')") == "ascending"
    page.click(".sortable th:nth-child(3) button")
    assert page.run(kinds)[0] == "bridge"


def test_runs_are_overlaid_and_can_be_hidden(opened, three):
    page = opened(three)
    curves = "document.querySelectorAll('#chart-learning_rate .curve').length"
    assert page.run(curves) == 3
    page.click("td input[type=checkbox]")
    assert page.run(curves) == 2
    rows = [text for text in page.texts("tr") if text.startswith("train.lr")]
    assert rows == ["train.lr\t0.003\t0.004\t0.002"]


def test_a_rate_per_gpu_is_not_that_of_all(opened, tmp_path):
    runs.make_run(tmp_path / "whole")
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text(encoding="utf-8")
    runs.write(tmp_path / "metrics-only", "metrics.jsonl", lines)  # nothing tells how many ranks there are
    page = opened(report(tmp_path, "whole", "metrics-only"))
    head, whole, metrics_only = (text.split("\t") for text in page.texts("table tr")[:3])
    rate = head.index("tokens/s/GPU")
    assert (whole[rate], metrics_only[rate]) == ("383.3", "–")
    page = opened(report(tmp_path, "metrics-only"))
    assert dict(text.split("\n")[::-1] for text in page.texts(".card"))["tokens per second"] == "2 300"


def test_ranks_on_a_cpu_are_not_gpus(opened, tmp_path):
    runs.make_run(tmp_path / "cpu")
    runs.write(tmp_path / "cpu", "recipe.yaml", runs.RECIPE.format(lr="0.003") + "dist: {device: cpu}\n")
    log = (tmp_path / "cpu" / "rank_2.log").read_text(encoding="utf-8")
    of_gpus = "allocated: 90.00 | max allocated: 95.50 | max reserved: 128.00 | "
    runs.write(tmp_path / "cpu", "rank_2.log", log.replace(of_gpus, ""))
    page = opened(report(tmp_path, "cpu"))
    cards = dict(text.split("\n")[::-1] for text in page.texts(".card"))
    assert cards["tokens per second and rank"] == "383.3" and cards["memory: host, most"] == "171.2 MiB"
    assert "GPU" not in page.text("main")


def test_a_failure_is_explained(opened, three):
    page = opened(three)
    text = page.text(".notice[role=alert]")
    assert "failed failed: gpu-oom" in text and "rank 5 on a12" in text and "Fix:" in text
    assert "cut off or damaged" in page.text(".notice.warn")
    assert page.text("#failures").startswith("failed: rank 5 (host a12")


def test_a_killed_run_of_any_length_is_shown(opened, tmp_path):
    runs.make_run(tmp_path / "whole")
    with open(tmp_path / "whole" / "metrics.jsonl", encoding="utf-8") as file:
        text = file.read()
    for size in (1, 300, 5000):
        runs.write(tmp_path / "cut", "metrics.jsonl", text[:size])
        page = opened(report(tmp_path, "cut"))
        assert page.text("h1") == "Run cut"
        assert page.data()["runs"][0]["last_iteration"] == len([1 for line in text[:size].splitlines() if line.endswith("}")])


def test_bad_paths_are_named(tmp_path):
    wrong = subprocess.run([BRAID, "report", str(tmp_path), "/nowhere"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "has no file of a run" in wrong.stderr and "'/nowhere' does not exist" in wrong.stderr
    runs.write(tmp_path / "other", "alternatives.log", "update-alternatives: link group updated\n")
    wrong = subprocess.run([BRAID, "report", str(tmp_path / "other")], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "contain no record of a run" in wrong.stderr


def test_prints(opened, one):
    page = opened(one)
    assert json.loads(json.dumps(page.call("Page.printToPDF")))["data"].startswith("JVBERi")  # %PDF
