"""The page of the admin listener in a real browser: Chromium without a window, driven by Selenium, judged by axe-core.

Called by `scripts/test page`, which installs what it needs. TOLLGATE_BIN is the binary, PAGE_AXE the file of axe-core.
With PAGE_SHOTS=FOLDER it also makes the pictures that the README shows.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

BINARY = os.environ["TOLLGATE_BIN"]
AXE = pathlib.Path(os.environ["PAGE_AXE"]).read_text(encoding="utf-8")
PATIENCE = 10
HOSTILE = "<img src=x onerror=window.hacked=1>\"'&amp;"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Gate:
    """`tollgate demo`, as a stranger starts it."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tollgate-page-")
        self.out = open(os.path.join(self.folder, "out"), "w+", encoding="utf-8")
        listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.client, self.admin = f"http://{listen}", f"http://{admin}"
        args = [BINARY, "demo", "--listen", listen, "--admin-listen", admin, "--pace", "300"]
        environment = {**os.environ, "TMPDIR": self.folder}
        self.process = subprocess.Popen(args, stdout=self.out, stderr=subprocess.STDOUT, env=environment)
        text = self.wait(lambda: self.printed() if "/metrics" in self.printed() else None)
        self.key = re.search(r"OPENAI_API_KEY=(\S+)", text)[1]
        self.page, self.token = re.search(r"Dashboard: (\S+) \(admin token: (\w+)\)", text).groups()

    def printed(self):
        self.out.flush()
        return pathlib.Path(self.out.name).read_text(encoding="utf-8")

    def wait(self, look, patience=PATIENCE):
        until = time.monotonic() + patience
        while time.monotonic() < until:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {patience} s")

    def ask(self, url, body=None, token=None, method=None):
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def api(self, path, body=None, method=None):
        status, text = self.ask(f"{self.admin}/admin/v1/{path}", body, self.token, method)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def chat(self, key=None, model="heron-large", **more):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
        return self.ask(f"{self.client}/v1/chat/completions", body, key or self.key)

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)


def browser():
    options = webdriver.ChromeOptions()
    for flag in ["headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars", "window-size=1200,900"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    options.binary_location = chromium
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))


class Page:
    def __init__(self, gate, driver):
        self.gate, self.driver = gate, driver

    def at(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.at(selector).text

    def until(self, look, patience=PATIENCE):
        return WebDriverWait(self.driver, patience, 0.05).until(lambda _: look())

    def open(self):
        self.driver.get(self.gate.page)
        self.until(lambda: "serving" in self.text("#well") and self.at("#model option") and self.at("#keylist td"))

    def tile(self, name):
        # In one step: the page draws them anew every other second.
        tiles = "[...document.querySelectorAll('#tiles div')].map(one => [one.children[1].innerText, one.children[0].innerText])"
        return dict(self.driver.execute_script(f"return {tiles}"))[name]

    def requests(self):
        return int(re.sub(r"\D", "", self.tile("requests, last hour")))

    def cells(self, selector):
        rows = f"[...document.querySelectorAll('{selector} tbody tr')].map(row => [...row.children].map(cell => cell.innerText.trim()))"
        return self.driver.execute_script(f"return {rows}")

    def allow(self):
        self.at("#token").clear()
        self.at("#token").send_keys(self.gate.token)
        self.at("#tokens button").click()
        self.until(lambda: self.text("#may") == "may change keys")

    def act(self, name, key):
        # In one step: the page draws its keys anew now and then.
        button = json.dumps(f'#keylist button[aria-label="{name} {key}"]:enabled')
        press = f"const button = document.querySelector({button}); button?.click(); return !!button"
        self.until(lambda: self.driver.execute_script(press))

    def fill(self, name, value):
        found = self.at(f"#box [name={name}]")
        found.clear()
        found.send_keys(value)

    def said(self):
        wanted = ["SEVERE", "WARNING"]
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in wanted]

    def faults(self):
        self.driver.execute_script(AXE)
        found = self.driver.execute_async_script("axe.run(document, {}).then(arguments[arguments.length - 1])")
        bad = [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")]
        return [(fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]) for fault in bad]

    def theme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def it_loads_without_an_error_and_asks_nobody_else(page):
    page.open()
    time.sleep(1)
    said = page.said()
    assert said == [], said
    asked = page.driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert asked and all(url.startswith((page.gate.admin + "/", "data:")) for url in asked), asked
    assert page.driver.execute_script("return document.cookie + JSON.stringify({...localStorage, ...sessionStorage})") == "{}"


def traffic_is_seen_within_two_seconds(page):
    before = page.requests()
    began = time.monotonic()
    assert page.gate.chat()[0] == 200
    page.until(lambda: page.requests() == before + 1)
    took = time.monotonic() - began
    assert took <= 2, f"{took:.1f} s"
    page.until(lambda: any(row[4] == "heron-large" for row in page.cells("#requestlist")[:1]))


def its_numbers_are_those_of_the_api_the_report_and_the_metrics(page):
    gate = page.gate
    for model in ["heron-small", "ibis-large", "heron-small"]:
        assert gate.chat(model=model, stream=model == "ibis-large")[0] == 200
    assert gate.chat(model="no-such-model")[0] == 404
    minutes = lambda name: sum(minute[name] for minute in gate.api("status")["minutes"])
    page.until(lambda: page.requests() == minutes("requests"))
    assert page.tile("errors") == str(minutes("errors"))
    page.open()
    report = gate.api("usage?by=model")["data"]
    shown = {row[0]: [int(re.sub(r"\D", "", cell)) for cell in (row[1], row[4])] for row in page.cells("#usage")}
    assert shown == {line["name"]: [line["requests"], line["total_tokens"]] for line in report}, (shown, report)
    metrics = gate.ask(gate.admin + "/metrics")[1]
    for name, (requests, tokens) in shown.items():
        counted = re.findall(rf'tollgate_requests_total{{endpoint="\w+",model="{name}",status="200"}} (\d+)', metrics)
        assert sum(map(int, counted)) == requests, (name, counted, requests)
        counted = re.findall(rf'tollgate_tokens_total{{model="{name}",kind="\w+"}} (\d+)', metrics)
        assert sum(map(int, counted)) == tokens, (name, counted, tokens)


def charts_have_axes_words_by_the_keyboard_and_a_table(page):
    charts = page.driver.find_elements(By.CSS_SELECTOR, ".chart")
    assert [chart.get_attribute("data-chart") for chart in charts] == ["Requests", "Errors", "Tokens", "Cost"]
    for chart in charts:
        picture = chart.find_element(By.TAG_NAME, "svg")
        assert len(picture.find_elements(By.TAG_NAME, "text")) >= 4 and picture.get_attribute("aria-label")
    picture = charts[0].find_element(By.TAG_NAME, "svg")
    page.driver.execute_script("arguments[0].focus()", picture)
    ActionChains(page.driver).send_keys(Keys.ARROW_RIGHT).perform()
    words = charts[0].find_element(By.CSS_SELECTOR, "small[aria-live]").text
    assert re.search(r"\d+ requests$", words), words
    ActionChains(page.driver).move_to_element(charts[2].find_element(By.TAG_NAME, "svg")).perform()
    page.until(lambda: "tokens" in charts[2].find_element(By.CSS_SELECTOR, "small[aria-live]").text)
    charts[0].find_element(By.TAG_NAME, "summary").click()
    rows = charts[0].find_elements(By.CSS_SELECTOR, "tbody tr")
    table = sum(int(row.find_elements(By.TAG_NAME, "td")[1].text) for row in rows)
    assert table == page.requests(), table
    charts[0].find_element(By.TAG_NAME, "summary").click()
    ActionChains(page.driver).move_to_element(page.at("h1")).perform()
    Select(page.at("#span")).select_by_value("30")
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, ".chart")) == 3)
    Select(page.at("#span")).select_by_value("hour")
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, ".chart")) == 4)


def a_key_is_issued_used_changed_rotated_and_revoked(page):
    page.allow()
    page.at("#issue").click()
    page.fill("name", "by the page")
    page.fill("requests", "50")
    page.at("#yes").click()
    key = page.until(lambda: page.driver.find_elements(By.ID, "shown") and page.text("#shown"))
    asked = {"model": "heron-large", "messages": [{"role": "user", "content": "Hello"}]}
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{page.gate.client}/v1/chat/completions"]
    curl += ["-H", f"authorization: Bearer {key}", "-H", "content-type: application/json", "-d", json.dumps(asked)]
    assert subprocess.check_output(curl, text=True) == "200", "it works at once"
    page.act("Edit", "by the page")
    assert page.at("#box [name=requests]").get_attribute("value") == "50"
    # What another changes while the form is open stays: only what was changed in it is sent.
    one = next(key for key in page.gate.api("keys")["data"] if key["name"] == "by the page")
    page.gate.api("keys/" + one["id"], {"limits": {"requests": 40}}, "PATCH")
    page.fill("name", "changed")
    page.fill("models", "heron-small, ibis-small")
    page.at("#yes").click()
    page.until(lambda: any(row[0] == "changed" and row[5] == "heron-small, ibis-small" for row in page.cells("#keylist")))
    assert page.gate.api("keys/" + one["id"])["limits"]["requests"] == 40
    page.gate.wait(lambda: page.gate.chat(key=key)[0] == 403)
    page.act("Rotate", "changed")
    page.fill("grace", "0s")
    page.at("#yes").click()
    fresh = page.until(lambda: page.text("#shown") != key and page.text("#shown"))
    page.gate.wait(lambda: page.gate.chat(key=key)[0] == 401)
    page.gate.wait(lambda: page.gate.chat(key=fresh, model="heron-small")[0] == 200)
    page.act("Revoke", "changed")
    page.at("#yes").click()
    page.until(lambda: any(row[0] == "changed" and row[4] == "revoked" for row in page.cells("#keylist")))
    page.gate.wait(lambda: page.gate.chat(key=fresh, model="heron-small")[0] == 401)
    who = [(line["who"], line["what"]) for line in page.gate.api("audit")["data"][:5]]
    assert who == [("admin_write_token", what) for what in ["revoke", "rotate", "edit", "edit", "issue"]], who
    page.at("#issue").click()
    page.fill("name", "x")
    page.fill("expires", "tomorrow")
    page.at("#yes").click()
    page.until(lambda: "expires" in page.text("#box [role=alert]"))
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()


def hostile_names_stay_text(page):
    page.gate.api("keys", {"name": HOSTILE, "labels": {"team": HOSTILE}})
    page.gate.chat(model="</script><img src=x onerror=window.hacked=2>")
    # What was said before is not of this.
    page.said()
    page.open()
    page.until(lambda: any(row[0] == HOSTILE for row in page.cells("#keylist")))
    assert page.driver.execute_script("return window.hacked === undefined && !document.querySelector('main img')")
    said = page.said()
    assert said == [], said


def everything_is_done_by_the_keyboard_alone(page):
    page.open()
    page.driver.execute_script("document.activeElement.blur()")
    keys = lambda *words: ActionChains(page.driver).send_keys(*words).perform()

    def tab_to(found):
        for _ in range(120):
            keys(Keys.TAB)
            if page.driver.execute_script(f"return document.activeElement?.matches('{found}')"):
                return
        raise AssertionError(f"no way to {found} by the keyboard")

    tab_to("#token")
    keys(page.gate.token, Keys.ENTER)
    page.until(lambda: page.text("#may") == "may change keys")
    tab_to("#issue")
    keys(Keys.ENTER)
    page.until(lambda: page.driver.execute_script("return document.activeElement?.name") == "name")
    keys("by keyboard", Keys.ENTER)
    page.until(lambda: page.driver.find_elements(By.ID, "shown"))
    tab_to('button[aria-label="Revoke by keyboard"]')
    keys(Keys.ENTER)
    tab_to("#yes")
    keys(Keys.ENTER)
    page.until(lambda: "revoked" in page.text("#secret"))


def the_playground_speaks_both_shapes_streamed_and_whole(page):
    page.open()
    page.at("#pkey").send_keys(page.gate.key)
    for shape in ["chat", "messages"]:
        for streams in [True, False]:
            Select(page.at("#shape")).select_by_value(shape)
            Select(page.at("#model")).select_by_visible_text("ibis-small" if shape == "chat" else "heron-small")
            if page.at("#stream").is_selected() != streams:
                page.at("#stream").click()
            page.at("#play .go").click()
            page.until(lambda: "tokens" in page.text("#took"))
            assert page.text("#said"), (shape, streams)
            assert re.search(r"; \d+ \+ \d+ tokens$", page.text("#took")), page.text("#took")
    page.at("#pkey").clear()
    page.at("#pkey").send_keys("wrong")
    page.at("#play .go").click()
    page.until(lambda: "key" in page.text("#took"))
    # The browser's own word for that answer.
    page.said()


def what_the_feed_left_out_is_said(page):
    page.open()
    told = 'event: missed\\ndata: {"requests":4001}\\n\\n'
    page.driver.execute_script(
        "const real = fetch; window.fetch = (url, ...more) => url.endsWith('/live')"
        f" ? Promise.resolve(new Response('{told}')) : real(url, ...more); following = false; follow()"
    )
    page.until(lambda: page.text("#missed").startswith("4\u2009001 more"))


def a_key_of_any_budget_is_renamed(page):
    made = page.gate.api("keys", {"name": "tiny", "limits": {"budget": 1e-9}})
    page.open()
    page.allow()
    page.act("Edit", "tiny")
    page.fill("name", "tiny too")
    page.at("#yes").click()
    page.until(lambda: any(row[0] == "tiny too" for row in page.cells("#keylist")))
    assert page.gate.api("keys/" + made["id"])["limits"]["budget"] == 1e-9


def it_fits_a_telephone(page):
    page.size(390, 800)
    page.open()
    wide = page.driver.execute_script("return document.documentElement.scrollWidth")
    page.size(1200, 900)
    assert wide <= 390, wide


def it_is_dark_where_that_is_asked_for_and_has_no_serious_fault_in_either(page):
    colours = []
    for theme in ["light", "dark"]:
        page.theme(theme)
        page.open()
        page.allow()
        colours.append(page.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert page.faults() == [], (theme, page.faults())
    assert colours[0] != colours[1], colours
    page.theme("light")


def it_costs_the_gateway_next_to_nothing(page):
    page.open()
    used = lambda: page.gate.api("status")["cpu_us"]
    before, began = used(), time.monotonic()
    time.sleep(6)
    share = (used() - before) / 1e6 / (time.monotonic() - began)
    assert share <= 0.01, f"{share:.3f} of a core"


def pictures(page, folder):
    """The pictures of the README, as small as they may be and still be read."""
    from PIL import Image, ImageDraw, ImageFont

    models = ["heron-large", "heron-small", "ibis-large", "ibis-small", "heron-nano", "no-such-model"]
    until, turn = time.monotonic() + float(os.environ.get("PAGE_SECONDS", "200")), 0
    while time.monotonic() < until:
        turn += 1
        page.gate.chat(model=models[5 if turn % 11 == 0 else turn * turn % 7])
        time.sleep(0.1 + turn % 23 / 10)
    for theme in ["light", "dark"]:
        page.theme(theme)
        page.size(1100, 800)
        page.open()
        time.sleep(2)
        place = pathlib.Path(folder) / f"page-{theme}.png"
        page.driver.save_screenshot(str(place))
        Image.open(place).convert("RGB").quantize(48, dither=Image.Dither.NONE).save(place, optimize=True)
    said = subprocess.run([BINARY, "requests", "--admin", page.gate.admin.removeprefix("http://"), "--limit", "14"], capture_output=True, text=True, check=True)
    lines = ["$ tollgate requests", *said.stdout.splitlines()]
    font = ImageFont.truetype("/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf", 13)
    width = int(max(font.getlength(line) for line in lines)) + 24
    image = Image.new("RGB", (width, 20 * len(lines) + 20), "#15171a")
    for at, line in enumerate(lines):
        ImageDraw.Draw(image).text((12, 10 + 20 * at), line, "#e6e6e6", font)
    image.quantize(16).save(pathlib.Path(folder) / "requests.png", optimize=True)
    page.theme("light")


CASES = [
    it_loads_without_an_error_and_asks_nobody_else,
    traffic_is_seen_within_two_seconds,
    its_numbers_are_those_of_the_api_the_report_and_the_metrics,
    charts_have_axes_words_by_the_keyboard_and_a_table,
    a_key_is_issued_used_changed_rotated_and_revoked,
    hostile_names_stay_text,
    everything_is_done_by_the_keyboard_alone,
    the_playground_speaks_both_shapes_streamed_and_whole,
    what_the_feed_left_out_is_said,
    a_key_of_any_budget_is_renamed,
    it_fits_a_telephone,
    it_is_dark_where_that_is_asked_for_and_has_no_serious_fault_in_either,
    it_costs_the_gateway_next_to_nothing,
]


def main():
    wanted = sys.argv[1:]
    gate, passed, failed = Gate(), 0, 0
    driver = browser()
    page = Page(gate, driver)
    try:
        for case in CASES:
            if wanted and not any(word in case.__name__ for word in wanted):
                continue
            try:
                case(page)
                passed += 1
                print(f"ok {case.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {case.__name__}\n{traceback.format_exc()}", flush=True)
        if os.environ.get("PAGE_SHOTS"):
            pictures(page, os.environ["PAGE_SHOTS"])
    finally:
        driver.quit()
        gate.end()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
