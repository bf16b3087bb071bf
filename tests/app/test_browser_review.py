"""Reviewing the answers with the keyboard, and the camera."""

from tests.app.actions import (
    BROWSER,
    PHONE,
    Open,
    add_class,
    ask,
    card,
    expect,
    file,
    label,
    learn,
    names,
    save,
    sideways,
    thumbs,
)

pytestmark = BROWSER


def test_answers_are_reviewed_with_the_keyboard(open_page: Open) -> None:
    page = open_page()
    learn(page)
    ask(page, file("stripes", 7), file("cross", 1), file("disc", 8), file("disc", 9))
    expect(page.locator(".question")).to_have_count(4)
    expect(page.get_by_role("status")).to_have_text("4 pictures added.")
    assert names(page)[0] == "cross 1.png", "the least sure one is first"
    filters = ["Label these next", "All4", "disc2", "stripes1", "None of these1"]
    expect(page.locator(".filter")).to_have_text(filters)
    expect(page.locator("#expected-text")).to_contain_text("of 4 examples that were held out, 4 were recognised")
    page.get_by_text("How this is estimated").click()
    expect(page.locator("#expected-classes li")).to_have_text(["disc2 of 2", "stripes2 of 2"])

    # The first picture shows none of these, the second answer is right; both are checked then, and come last.
    page.get_by_role("button", name="Grid").click()
    page.locator(".question").first.focus()
    page.keyboard.press("0")
    expect(card(page, "cross 1.png").locator(".check")).to_have_attribute("aria-pressed", "true")
    second = str(page.locator(".question:focus").get_attribute("aria-label"))
    assert not second.startswith("cross 1.png")
    page.keyboard.press("Enter")
    expect(page.locator(".filter")).to_have_text(
        ["Label these next", "All4", "Not checked2", "disc2", "stripes1", "None of these1"]
    )
    assert sorted(names(page)[2:]) == sorted(["cross 1.png", second.partition(":")[0]])
    expect(page.locator(".question:focus")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".question").nth(1)).to_be_focused()

    # A number moves a picture into a class, where it is an example.
    name = str(page.locator(".question:focus .file-name").text_content())
    page.keyboard.press("2")
    expect(card(page, name)).to_have_count(0)
    expect(thumbs(page, "stripes")).to_have_count(3)
    page.keyboard.press("Control+z")
    expect(card(page, name)).to_have_count(1)
    page.locator("#filters").get_by_role("button", name="Not checked").click()
    expect(page.locator(".question")).to_have_count(2)
    page.get_by_role("button", name="Confirm all 2").click()
    expect(page.get_by_role("button", name="All confirmed")).to_be_disabled()
    expect(page.locator(".is-checked")).to_have_count(4)

    # "None of these" is in the list of places, for examples as well; and a check is taken back.
    page.get_by_role("button", name="Details").click()
    page.get_by_role("button", name="disc 1.png, an example of disc").click()
    page.get_by_role("dialog").get_by_role("button", name="None of these").click()
    expect(thumbs(page, "disc")).to_have_count(1)
    expect(label(page, "disc 1.png")).to_have_text("None of these")
    card(page, "disc 1.png").get_by_role("button", name="Move disc 1.png to a class").click()
    page.get_by_role("dialog").get_by_role("button", name="Not checked").click()
    expect(card(page, "disc 1.png").locator(".check")).to_have_attribute("aria-pressed", "false")


def test_a_file_that_takes_long_to_make_is_saved_or_its_error_is_shown(open_page: Open) -> None:
    page = open_page()
    add_class(page, "disc", file("disc", 1))
    link = page.get_by_role("link", name="For other programs (ONNX)")
    page.route("**/api/classifier.onnx", lambda route: route.fulfill(body=b"a model"))
    saved = save(page, "For other programs (ONNX)")
    assert saved.suggested_filename == "classifier.onnx"
    assert saved.path().read_bytes() == b"a model"
    page.route("**/api/classifier.onnx", lambda route: route.fulfill(status=400, json={"error": "onnx is missing"}))
    page.get_by_text("Files", exact=True).click()
    link.click()
    expect(page.locator("#problems")).to_contain_text("onnx is missing")


def test_the_camera_takes_pictures(open_page: Open) -> None:
    page = open_page(**PHONE, color_scheme="dark")
    add_class(page, "green")
    page.get_by_role("button", name="Take pictures of green").click()
    take = page.get_by_role("button", name="Take picture", exact=True)
    expect(take).to_be_focused()
    expect(page.locator("#camera-video")).to_be_visible()
    assert sideways(page) == 0
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#camera-count")).to_have_text("2 pictures taken")
    page.get_by_label("Add to").select_option("Pictures to classify")
    take.click()
    page.get_by_role("button", name="Close").click()
    expect(thumbs(page, "green")).to_have_count(2)
    expect(page.locator(".question")).to_have_count(1)
    assert page.evaluate("document.getElementById('camera-video').srcObject") is None, "the camera is off"


def test_without_a_camera_the_page_says_what_to_do(open_page: Open) -> None:
    page = open_page()
    page.evaluate(
        """() => {
            navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("none", "NotFoundError"));
        }"""
    )
    page.get_by_role("button", name="Camera").click()
    expect(page.locator("#camera-status")).to_contain_text("There is no camera on this computer.")
    expect(page.get_by_role("button", name="Take picture", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Close").click()
    page.evaluate("() => { Object.defineProperty(navigator, 'mediaDevices', { value: undefined }); }")
    page.get_by_role("button", name="Camera").click()
    expect(page.locator("#camera-status")).to_contain_text("On a phone, “Choose pictures” offers its camera.")
