"""The pages that `braid plan search` and `braid plan simulate` write."""

import json
import os
import subprocess

import pytest

BRAID = os.environ["BRAID"]
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
RECIPE = os.path.join(ROOT, "recipes", "tiny-vlm.yaml")


def braid(*arguments):
    return subprocess.run([BRAID, "plan", *arguments], check=True, capture_output=True, text=True).stdout


def profile_in(folder):
    """Nodes of two GPUs that are so slow that it pays to use several for a tiny model, and links to match."""
    path = folder / "slow.yaml"
    path.write_text("""
note: a test
device: cuda
memory_gb: 80
ranks_per_node: 2
host_us: 0
inside_node: {latency_us: 5, rates: "1e3 0.02\\n1e6 0.4"}
between_nodes: {latency_us: 9, rates: "1e3 0.01\\n1e6 0.2"}
operators:
  product: {latency_us: 2, rates: "64 64 64 20\\n4096 4096 4096 90"}
  stream: {latency_us: 2, rates: "1e4 2\\n1e8 20"}
""")
    return str(path)


def simulated(recipe, hardware, *more):
    return json.loads(braid("simulate", recipe, "--hardware", hardware, "--json", *more))["iteration_s"]


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


def test_the_times_are_those_of_a_simulation(opened, searched):
    folder, path, best = searched
    data = opened(path).data()
    for layout, recipe in {0: best, data["baseline"]: RECIPE}.items():
        expected = simulated(recipe, profile_in(folder), "--full")
        assert data["layouts"][layout]["iteration_s"] == pytest.approx(expected)


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


def test_a_plan_of_a_host_names_its_ranks(opened, tmp_path):
    path = str(tmp_path / "plan.html")
    braid("simulate", RECIPE, "--full", "--hardware", "cpu-2", "--html", path)
    page = opened(path)
    assert "tokens per second and rank" in page.text("#figures") and "GPU" not in page.text("main")
