"""That the other tests can fail: what a bad page does is noticed."""


def test_complaints_and_loads_are_noticed(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<script>console.warn('careful'); setTimeout(() => { throw new Error('broken'); });</script>"
                    "<img src=missing.png><div style='width: 3000px'>wide</div>")
    page = browser.open(str(path))
    page.settle()
    texts = "\n".join(page.complaints)
    assert "careful" in texts and "broken" in texts and "ERR_FILE_NOT_FOUND" in texts
    assert len(page.loaded) == 2
    assert page.overflow() > 1000
    page.close()
