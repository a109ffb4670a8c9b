"""The sliders of pages that `braid plan search` and `braid plan simulate` write. The oracle is `braid plan simulate` with
a profile whose links have that speed, or with samples that have that many media."""

import json
import os
import subprocess

import pytest

BRAID = os.environ["BRAID"]
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
RECIPE = os.path.join(ROOT, "recipes", "tiny-vlm.yaml")
INSIDE, BETWEEN, IMAGES = range(3)  # sliders
MAX_ITEMS = 2  # the default of data.media
ROUNDING = 5e-6  # the page has six digits
MEAN_SIZES = 0.03  # of drawn samples, the page knows the mean size only; found on this recipe: 1.3 %


def braid(*arguments):
    return subprocess.run([BRAID, "plan", *arguments], check=True, capture_output=True, text=True).stdout


def profile_in(folder, inside=1.0, between=1.0):
    """Nodes of two GPUs that are so slow that it pays to use several for a tiny model, and links to match."""
    path = folder / f"links-{inside}-{between}.yaml"
    path.write_text(f"""
note: a test
device: cuda
memory_gb: 80
ranks_per_node: 2
host_us: 0
inside_node: {{latency_us: 5, rates: "1e3 {0.02 * inside}\\n1e6 {0.4 * inside}"}}
between_nodes: {{latency_us: 9, rates: "1e3 {0.01 * between}\\n1e6 {0.2 * between}"}}
operators:
  product: {{latency_us: 2, rates: "64 64 64 20\\n4096 4096 4096 90"}}
  stream: {{latency_us: 2, rates: "1e4 2\\n1e8 20"}}
""")
    return str(path)


def simulated(recipe, hardware, *more):
    return json.loads(braid("simulate", recipe, "--hardware", hardware, "--json", *more))["iteration_s"]


def shown(page, layout):
    return page.run(f"layouts[{layout}].seconds")


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    page, best = str(folder / "plan.html"), str(folder / "best.yaml")
    braid("search", RECIPE, "--full", "--nodes", "3", "--hardware", profile_in(folder), "--html", page, "--write", best)
    return folder, page, best


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_searched_page_fits(opened, searched, width, dark):
    page = opened(searched[1], width=width, dark=dark)
    assert page.overflow() <= 0
    assert page.run("document.querySelectorAll('.sliders input').length") == 3


@pytest.mark.parametrize("speeds,images", [
    ({"inside": 0.25}, 1), ({"inside": 4}, 1), ({"between": 0.25}, 1), ({"between": 2}, 1), ({}, 2),
    ({"inside": 0.5, "between": 0.5}, 1), ({"inside": 2, "between": 0.25}, 2)])
def test_sliders_agree_with_a_simulation(opened, searched, speeds, images):
    folder, path, best = searched
    page = opened(path)
    data = page.data()
    recipes = {0: best, data["baseline"]: RECIPE}
    for layout, recipe in recipes.items():
        as_predicted = simulated(recipe, profile_in(folder), "--full")
        assert shown(page, layout) == pytest.approx(as_predicted, rel=ROUNDING)
    for slider, factor in ((INSIDE, speeds.get("inside", 1)), (BETWEEN, speeds.get("between", 1)), (IMAGES, images)):
        page.set_slider(f"#what-if-{slider}", data["what_if"][slider]["stops"].index(factor))
        assert page.text(f"label:has(#what-if-{slider}) output") == f"{factor}×"
    for layout, recipe in recipes.items():
        expected = simulated(recipe, profile_in(folder, **speeds), "--full",
                             f"--data.media.images.max_items={MAX_ITEMS * images}")
        assert shown(page, layout) == pytest.approx(expected, rel=ROUNDING)
    # The recipe as given uses all links and has images, so that every slider changes its time.
    assert abs(expected / data["layouts"][data["baseline"]]["iteration_s"] - 1) > 1000 * ROUNDING
    assert f"{1e3 * shown(page, 0):.3g} ms" in page.text("#answer")
    page.click("#reset")
    assert shown(page, 0) == data["layouts"][0]["iteration_s"]
    assert page.text("label:has(#what-if-0) output") == "1×"


def test_what_if_is_a_column_and_chooses_the_fastest(opened, searched):
    page = opened(searched[1])
    column = "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[4].innerText)"
    assert set(page.run(column)) == {"–"}
    page.set_slider("#what-if-1", 0)
    seconds = page.run("layouts.filter(layout => layout.fits).map(layout => layout.seconds)")
    assert "–" not in page.run(column)
    fastest = page.run(f"layouts.findIndex(layout => layout.seconds === {min(seconds)})") + 1
    assert (f"Layout {fastest} would be the fastest" in page.text("#answer")) == (fastest != 1)
    front = page.run("layouts.filter(layout => layout.on_front).map(({needed_bytes, seconds}) => [needed_bytes, seconds])")
    assert min(seconds) in [time for _, time in front]
    assert [time for _, time in sorted(front)] == sorted((time for _, time in front), reverse=True)


def filtered(page, text):
    page.run(f"(() => {{ const input = document.getElementById('filter'); input.value = '{text}';"
             "input.dispatchEvent(new Event('input')); })()")
    return page.run("[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[2].innerText)")


def test_settings_are_a_column_and_filter(opened, searched):
    page = opened(searched[1])
    settings = filtered(page, "")
    assert all(text.startswith("micro batch ") for text in settings)
    assert sorted(filtered(page, "micro batch 2")) == sorted(text for text in settings if "micro batch 2" in text)
    assert 0 < len(filtered(page, "expert pieces 2")) < len(settings)


@pytest.mark.parametrize("speeds", [{"inside": 0.25}, {"between": 0.25}, {"inside": 4, "between": 2}])
def test_drawn_samples(opened, tmp_path, speeds):
    path = str(tmp_path / "plan.html")
    braid("simulate", RECIPE, "--steps", "4", "--hardware", profile_in(tmp_path), "--html", path)
    page = opened(path)
    for slider, link in ((INSIDE, "inside"), (BETWEEN, "between")):
        page.set_slider(f"#what-if-{slider}", page.data()["what_if"][slider]["stops"].index(speeds.get(link, 1)))
    expected = simulated(RECIPE, profile_in(tmp_path, **speeds), "--steps", "4")
    assert shown(page, 0) == pytest.approx(expected, rel=MEAN_SIZES)
    assert abs(expected / page.data()["layouts"][0]["iteration_s"] - 1) > 3 * MEAN_SIZES


def test_only_what_changes_anything_has_a_slider(opened, tmp_path):
    path = str(tmp_path / "plan.html")
    braid("simulate", RECIPE, "--full", "--hardware", "cpu-2", "--html", path)  # one host
    page = opened(path)
    names = [axis["name"] for axis in page.data()["what_if"]]
    assert names == ["speed inside a node", "images per sample"]
    assert page.run("document.querySelectorAll('.sliders input').length") == 2
    assert "tokens per second and rank" in page.text("#figures") and "GPU" not in page.text("main")
