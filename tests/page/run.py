"""Tests of the dashboard in a real browser, and of the command line's tables in a terminal of 80 columns.

Called by `scripts/test page`, which installs the required packages. TOLLGATE_BIN is the path of the binary, PAGE_AXE
the file of axe-core. With PAGE_SHOTS=FOLDER it also takes the screenshots of the README, light and dark, and of each
view. """

import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback

from gate import BINARY, Gate, Incident, Page, browser, free_port
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

HOSTILE = "<img src=x onerror=window.hacked=1>\"'&amp;"
VIEWS = ["overview", "requests", "spending", "targets", "keys", "try"]
NAME = "a-name-of-twenty-chr"


def on_terminal(gate, *args, columns=80):
    """Output of a command on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen([BINARY, *args], cwd=gate.folder, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    process.wait()
    return said.decode().replace("\r\n", "\n")


def first_lines_on_terminal(args, folder):
    """The first two lines that a running command prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    process = subprocess.Popen(args, cwd=folder, stdout=theirs, stderr=theirs, stdin=theirs, env={**os.environ, "OPENAI_API_KEY": "sk-x"})
    os.close(theirs)
    said = b""
    try:
        while said.count(b"\n") < 2:
            said += os.read(ours, 65536)
    except OSError:
        pass
    process.terminate()
    process.wait(10)
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def first_look_shows_everything_that_failed_before(_, driver):
    gate = Incident()
    try:
        few = gate.issue("few-key", "--plan", "few")
        assert gate.send("one", few)[0] == 200
        for _ in range(69):
            assert gate.send("fine")[0] == 200
        for _ in range(20):
            assert gate.send("#sim status=500")[0] == 500
        for _ in range(10):
            assert gate.send("more", few)[0] == 429
        page = Page(gate, driver)
        page.open()
        seen = lambda: [re.sub(r"\D", "", page.tile(name)) for name in ["requests, last hour", "failed (5xx)", "refused (4xx)"]]
        page.until(lambda: seen() == ["100", "20", "10"], 3)
        assert page.cells("#attention"), "failures need attention"
        page.go("requests?status=failed")
        page.until(lambda: len(page.cells("#requestlist")) == 20)
        page.go("requests?status=refused")
        page.until(lambda: [row[7] for row in page.cells("#requestlist")] == ["limit: requests of the key (\u00d7 10)"])
        page.go("requests?status=5xx")
        page.until(lambda: len(page.cells("#requestlist")) == 20)
        assert all("status 500" in row[7] for row in page.cells("#requestlist"))
        assert re.match(r"Kept: \d+ requests, all since [\d:]{8}(, failures \(5xx\) since [\d:]{8})?\. 20 of them match; they cost \$0\.0000\.$", page.text("#since")), page.text("#since")
        said = gate.run("requests", "--failed", "--limit", "100").stdout
        assert said.count("status 500") == 20 and "(x 10) limit: requests of the key" in said, said
        for _ in range(5000):
            gate.send("more", few)
        assert gate.run("requests", "--status", "500", "--limit", "100").stdout.count("status 500") == 20
        page.open("requests?status=5xx")
        page.until(lambda: len(page.cells("#requestlist")) == 20)
    finally:
        gate.end()


def every_reason_names_its_limit_field_name_or_cause(_, driver):
    gate = Incident()
    try:
        gate.stop("sim")
        keys = {"requests": gate.issue("requests-key", "--plan", "few"), "tokens": gate.issue("tokens-key", "--tokens", "1"),
                "budget": gate.issue("budget-key", "--budget", "0.000001"), "group": gate.issue("group-key", "--group", "agents")}
        assert gate.send("x", model="two")[0] == 200, "the second target answers"
        gate.start_provider("sim")
        gate.wait(lambda: gate.send("x")[0] == 200)
        for name in ["requests", "tokens", "budget"]:
            gate.send("x", keys[name])
            assert gate.send("x", keys[name])[0] == 429, name
        gate.wait(lambda: gate.send("#sim tokens=500", keys["group"])[0] == 429)
        assert gate.send("x", temperature="hot")[0] == 400
        assert gate.send("x", model="gpt-5-mini")[0] == 404
        assert gate.request(gate.client + "/v1/chatt", {}, gate.key)[0] == 404
        assert gate.send("x", "tg_live_wrong")[0] == 401
        assert gate.send("#sim status=500 message=broken")[0] == 500
        body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "#sim delay=5000"}]})
        subprocess.run(["curl", "-s", "-m", "1.3", gate.client + "/v1/chat/completions", "-H", f"authorization: Bearer {gate.key}",
                        "-H", "content-type: application/json", "-d", body], check=False)
        page = Page(gate, driver)
        page.open("requests")
        for reason in ["limit: requests of the key", "limit: tokens of the key", "limit: budget of the key",
                       "limit: budget of group agents", "field: temperature", "no model gpt-5-mini", "no path /v1/chatt",
                       "key: ", "status 500", "client left after 1.", "attempt 2 succeeded; sim/m: connect: refused"]:
            listed = lambda wanted=reason: any(row[7].startswith(wanted) for row in page.cells("#requestlist"))
            assert page.until(listed), (reason, page.cells("#requestlist"))
    finally:
        gate.end()


def stopped_provider_is_shown_with_cause_and_start_until_it_is_back(_, driver):
    gate = Incident()
    try:
        page, going = Page(gate, driver), threading.Event()
        def traffic():
            while not going.wait(0.2):
                gate.send("x")
        thread = threading.Thread(target=traffic, daemon=True)
        thread.start()
        page.open()
        page.until(lambda: "Healthy" in page.text("#health") and page.requests() > 3)
        gate.stop("sim")
        page.until(lambda: "Degraded" in page.text("#health"), 15)
        # The list of targets is read less often than the health.
        page.until(lambda: re.match(r"Degraded, \d+ problems? - Tollgate \(127", driver.title))
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "sim/m"), None))
        assert "connect: refused" in row[2] and re.match(r"\d\d:\d\d:\d\d$", row[3]), row
        page.go("targets")
        page.until(lambda: page.cells("#targetlist")[0][0] == "sim/m" and "connect: refused" in page.cells("#targetlist")[0][2])
        gate.start_provider("sim")
        page.until(lambda: "Healthy" in page.text("#health"), 60)
    finally:
        going.set()
        thread.join()
        gate.end()


def the_cause_of_a_target_is_that_of_most_failures(_, driver):
    gate = Incident()
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "#sim delay=9000"}]})
    try:
        for _ in range(7):
            assert gate.send("#sim status=500")[0] == 500
        subprocess.run(["curl", "-s", "-m", "2.5", gate.client + "/v1/chat/completions", "-H", f"authorization: Bearer {gate.key}",
                        "-H", "content-type: application/json", "-d", body], check=False)
        page = Page(gate, driver)
        page.open()
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "sim/m"), None))
        assert re.match(r"(failing|only target, still tried): status 500, \d of \d attempts failed in 5 min; \d requests of clients failed", row[2]), row
        page.go("targets")
        page.until(lambda: "status 500" in page.cells("#targetlist")[0][2])
        said = gate.run("status").stdout
        assert re.search(r"target sim/m, since [\d:]+Z.*: (failing|only target, still tried): status 500", said) and "client left" not in said, said
    finally:
        gate.end()


def dashboard_and_status_have_the_same_words(page, driver):
    gate = Incident()
    try:
        for _ in range(4):
            gate.send("#sim status=500")
        page = Page(gate, driver)
        page.open()
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "sim/m"), None))
        one = next(one for one in json.loads(gate.run("status", "--json").stdout)["problems"] if one["name"] == "sim/m")
        assert row[2] == f"{one['text']} {one['next']}" and one["failed"] == 4, (row, one)
        said = " ".join(gate.run("status").stdout.split())
        assert one["text"] in said and one["next"] in said and one["manual"] in said, said
        assert page.at("#attention a[aria-label='Manual: sim/m']").get_attribute("href").endswith(one["manual"])
        reasons = page.until(lambda: page.cells("#reasons"))
        assert reasons[0][0] == "status 500: server_error" and reasons[0][1] == "sim/m" and reasons[0][4:6] == ["4", "0"], reasons
        assert re.search(r"\n +4 +0 +status 500: server_error +sim/m ", gate.run("requests", "--reasons", "--wide").stdout)
        page.go("targets")
        page.until(lambda: "Attempts: sim/m" in page.text("#targetcharts"))
        page.js("const span = document.querySelector('#targetspan'); span.value = '30'; span.onchange()")
        page.until(lambda: all(f"{name}: sim/m" in page.text("#targetcharts") for name in ["Requests", "Failed", "Duration p50"]))
        share = page.js("return document.querySelectorAll('[data-chart=\"Failed: sim/m\"] rect.bad').length")
        assert share == 1, share
        assert page.violations() == [], page.violations()
    finally:
        gate.end()


def shares_have_one_rule_everywhere(page, _):
    shares = [[0, 3], [1, 1000], [37, 529], [29, 200], [999, 1000], [1, 1], [1207, 1000]]
    page.open()
    shown = page.js("return arguments[0].map(([part, of]) => percent(part / of))", shares)
    # The same list is in src/control/cli/output.rs.
    assert shown == ["0 %", "< 1 %", "7 %", "15 %", "> 99 %", "100 %", "121 %"], shown


def more_than_a_hundred_requests_are_listed_on_demand(page, _):
    # The first look begins to keep more.
    page.open("requests")
    page.until(lambda: page.js("return !!kept"))
    for _ in range(130):
        page.gate.chat()
    page.until(lambda: page.at("#morerows").is_displayed())
    page.go("requests?status=2xx")
    page.until(lambda: len(page.cells("#requestlist")) == 100)
    page.at("#morerows").click()
    page.until(lambda: len(page.cells("#requestlist")) > 129)
    key = page.js("return [1, 5].map(cost_used => stateOfKey({name: 'k', status: 'live', cost_used, tokens_used: 0, limits: [], budgets: [{name: 'k', unit: 'usd', per: 'month', models: null, used: cost_used, limit: 5, renews: now.time}], renews: now.time}).outerHTML)")
    assert key == ['<span class="good">live</span>', '<span class="warn">live, spent</span>'], key
    # A status is a class or one status; 499 is no refusal.
    shown = page.js("""return ['499', '4xx', '2xx'].map(status => { params.set('status', status); return [200, 404, 499, 502].filter(status => fits({status})) })""")
    assert shown == [[499], [404], [200]], shown


def a_slow_target_is_shown_with_its_start_and_its_usual_time(page, _):
    page.gate.chat()
    page.open()
    # A real target becomes slow only after an hour of constant times, so the script changes the response about targets.
    page.js("""const real = window.fetch
        window.fetch = async (url, ...more) => {
            const answer = await real(url, ...more)
            const since = new Date(Date.now() - 18e4).toISOString()
            if (!/v1\\/(targets|status)/.test(url)) return answer
            const body = await answer.json(), one = body.data?.find(one => one.model === 'heron-large')
            if (one) Object.assign(one, {state: 'slow', since, first_byte_us: {median: 2300000, p95: 4100000, usual: 310000}})
            else body.problems = [{what: 'target', name: targets.find(one => one.model === 'heron-large')?.target, state: 'slow', since, until: null, failed: 0, health: 'healthy', models: [], text: 'slow: median 2300 ms, usually 310 ms', next: '', manual: ''}]
            return new Response(JSON.stringify(body), {status: 200})
        }""")
    words = "slow: median 2300 ms, usually 310 ms"
    row = page.until(lambda: next((row for row in page.cells("#attention") if row[2] == words), None))
    assert row[0] == "!" and re.match(r"\d\d:\d\d$", row[3].split()[-1]) and row[4] == "Requests", row
    assert "Healthy" in page.text("#health") and "Healthy, 1 notice - " in page.driver.title, page.driver.title
    page.go("targets")
    rows = page.until(lambda: page.cells("#targetlist"))
    assert re.match(r"slow: median 2300 ms, usually 310 ms; since \d\d:\d\d", rows[0][2]), rows
    page.until(lambda: page.cells("#targetlist")[0][5:8] == ["2300 ms", "4100 ms", "310 ms"])
    assert page.violations() == [], page.violations()


def what_needs_attention_is_sorted_by_urgency_and_opened(page, _):
    page.gate.chat()
    page.open()
    page.until(lambda: page.js("return !missing.size && !!forecasts"))
    first, words, opened, told, state = page.js("""const one = (target, state, more) => ({target, model: 'm', state, since: now.time, queued: 0, resting: null,
            one_caller: false, unanswered: null, left: {}, last_failure: {time: now.time, cause: 'status 503'}, in_flight: 0, slots: 0,
            minutes_5: {answered: 10, failed: 10, unanswered: 0}, first_byte_us: {median: 9e6, p95: 9e6, usual: 1e5}, limits: [], ...more})
        targets = [one('a/slow', 'slow'), one('b/partly', 'partly_failing'), one('b/ok', 'ok', {first_byte_us: null}), ...Array.from({length: 7}, (_, at) => one('c/down' + at, 'failing'))]
        groups = [['near', 9, 10], ['soon', 1, 4], ['spent', 3, 3], ['full', 3, 2]].map(([name, used, total]) => ({name, parent: null, renews: now.time, limits: [{resource: 'budget', per: 'month', models: null, used, reserved: 0, total, renews: now.time}]}))
        keyList = [{id: 'K', name: 'k', group: 'full', status: 'live', cost_used: 0, tokens_used: 0, limits: [], renews: now.time}]
        forecasts = [{what: 'group', name: 'soon', unit: 'usd', per: 'month', models: null, renews: now.time, forecast: 'spent 23:59 UTC'}]
        const problem = (name, state, failed) => ({what: 'target', name, state, since: now.time, until: null, failed, models: [], text: state, next: '', manual: '', health: 'degraded'})
        const problems = [...Array.from({length: 7}, (_, at) => problem('c/down' + at, 'failing', 9 - at)), problem('b/partly', 'partly_failing', 1), problem('a/slow', 'slow', 0)]
        now = {...now, problems, refused: [{what: 'key', id: 'K', name: 'k', requests: 90, refused: 90, status: 429, since: now.time}]}
        overview()
        const read = () => [...document.querySelectorAll('#attention tbody tr')].map(row => row.cells[1].textContent)
        const first = read(), button = document.getElementById('more'), words = button.textContent
        button.click()
        targetTable()
        return [first, words, read(), document.getElementById('attention').textContent, document.querySelector('#targetlist tr[data-id="b/ok"]').textContent]""")
    assert first == [f"c/down{at}" for at in range(7)] + ["b/partly"], first
    assert words == "and 5 more" and opened == first + ["a/slow", "group full", "group spent", "group soon", "group near"], (words, opened)
    assert "key `k`: 90 of 90 requests refused in 5 min" in told and "Targets without a usual first-byte time yet: 1 (" in told, told
    assert "not known yet" in state, state


def a_target_that_was_only_refused_stays_failing_after_its_cool_down(_, driver):
    gate = Incident()
    try:
        for _ in range(4):
            gate.send("#sim status=503")
        page = Page(gate, driver)
        page.open("targets")
        first = page.until(lambda: next((row for row in page.cells("#targetlist") if row[0] == "sim/m" and row[2].startswith("failing: ")), None), 20)
        said = gate.run("status").stdout
        assert said.startswith("degraded\n") and re.search(r"\nsim/m +small, two +failing ", said) and re.search(r"\n  target sim/m, since [\d:]+Z: failing: status 503", said), said
        told = json.loads(gate.run("status", "--json").stdout)
        assert told["health"] == "degraded" and any((one["name"], one["state"]) == ("sim/m", "failing") for one in told["problems"]) and {one["state"] for one in told["targets"] if one["target"] == "sim/m"} == {"failing"}, told
        gate.wait(lambda: gate.send("works")[0] == 200)
        # Most attempts of the last minutes have failed: half a minute without a failure makes it ok.
        page.until(lambda: any(row[0] == "sim/m" and row[2] == "ok" for row in page.cells("#targetlist")), 45)
        assert "status 503" in first[2], first
    finally:
        gate.end()


def a_key_whose_requests_are_all_refused_needs_attention(_, driver):
    gate = Incident()
    try:
        page, key = Page(gate, driver), gate.issue("ci-bot")
        page.open()
        assert gate.send("works")[0] == 200
        for _ in range(12):
            assert gate.send("#sim status=400", key)[0] == 400
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "key ci-bot"), None))
        assert row[2] == "12 of 12 requests refused in 5 min, mostly with status 400" and re.match(r"\d\d:\d\d:\d\d$", row[3]), row
        assert any(row[1] == "model small" for row in page.cells("#attention")), page.cells("#attention")
        assert {one["name"] for one in gate.api("status")["refused"]} == {"ci-bot", "small"}, gate.api("status")
    finally:
        gate.end()


def attempts_that_hang_are_shown_with_the_age_of_the_oldest(_, driver):
    gate, hung = Incident(), []
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "#sim delay=90000"}]})
    try:
        page = Page(gate, driver)
        page.open("targets")
        for _ in range(3):
            hung.append(subprocess.Popen(["curl", "-s", gate.client + "/v1/chat/completions", "-H", f"authorization: Bearer {gate.key}",
                                          "-H", "content-type: application/json", "-d", body], stdout=subprocess.DEVNULL))
        state = lambda: next((row[2] for row in page.cells("#targetlist") if row[0] == "sim/m"), "")
        page.until(lambda: re.match(r"waiting: 3 without an answer, the oldest for \d+ s", state()))
        said = page.until(lambda: re.match(r"hung: .*(\d+) in flight without an answer", state()), 45)
        assert said[1] == "3", state()
        page.go("overview")
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "sim/m"), None))
        assert row[2].startswith("hung: ") and row[3] != "-", row
    finally:
        for client in hung:
            client.terminate()
            client.wait(10)
        gate.end()


def a_target_hangs_if_clients_leave_before_the_first_byte(_, driver):
    gate = Incident()
    body = json.dumps({"model": "small", "stream": True, "messages": [{"role": "user", "content": "#sim delay=90000"}]})
    try:
        page = Page(gate, driver)
        page.open()
        ask = ["curl", "-s", "-m", "3", gate.client + "/v1/chat/completions", "-H", f"authorization: Bearer {gate.key}", "-H", "content-type: application/json", "-d", body]
        for client in [subprocess.Popen(ask, stdout=subprocess.DEVNULL) for _ in range(5)]:
            client.wait(10)
        row = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "sim/m"), None))
        assert row[2].startswith("hung: no answer, 5 of 5 attempts failed in 5 min") and re.match(r"\d\d:\d\d:\d\d$", row[3]), row
        page.until(lambda: "Degraded" in page.text("#health"))
        said = gate.run("status").stdout
        assert said.startswith("degraded\n") and re.search(r"sim/m +small, two +hung +[\d:]+Z ", said), said
    finally:
        gate.end()


def nothing_is_said_to_be_right_before_everything_is_loaded(_, driver):
    gate = Incident()
    late = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """const real = window.fetch
        window.fetch = async (url, ...more) => {
            if (String(url).includes('v1/targets')) await new Promise(done => { window.release = done })
            return real(url, ...more)
        }"""})
    try:
        page = Page(gate, driver)
        page.open()
        page.until(lambda: "Loading" in page.text("#attention"))
        page.until(lambda: page.js("return !!window.release"))
        time.sleep(2)
        assert "Nothing needs attention" not in page.text("#attention"), page.text("#attention")
        page.js("window.release()")
        page.until(lambda: "Nothing needs attention" in page.text("#attention"))
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", late)
        gate.end()


def focus_and_a_long_press_outlast_a_refresh(_, driver):
    gate = Incident()
    try:
        page = Page(gate, driver)
        for _ in range(4):
            gate.send("#sim status=503")
        for view, place in [("overview", "#attention"), ("targets", "#targetlist")]:
            page.open(view)
            page.until(lambda: page.cells(place))
            link = page.at(f"{place} td a")
            page.js("arguments[0].focus(); window.before = document.activeElement", link)
            time.sleep(6)
            assert page.js("return document.activeElement === window.before && window.before.isConnected"), view
            ActionChains(page.driver).click_and_hold(link).pause(2.5).release().perform()
            page.until(lambda: page.at("#v-requests").is_displayed())
    finally:
        gate.end()


def long_names_are_cut_and_no_view_is_wider_than_the_window(_, driver):
    gate = Incident()
    try:
        name = "W" * 64
        # A failure is recorded from the start.
        assert gate.send("#sim status=400", gate.issue(name))[0] == 400
        page = Page(gate, driver)
        for width in [1280, 390]:
            page.size(width, 844)
            for view, place in [("keys", "#keylist"), ("requests", "#requestlist")]:
                page.open(view)
                page.until(lambda where=place: any("WWW…WWW" in row[0] + row[2] for row in page.cells(where)))
                assert page.js("return document.documentElement.scrollWidth <= innerWidth"), (view, width)
                assert page.js(f"return !!document.querySelector('#v-{view} a[title=\"{name}\"]')"), (view, width)
    finally:
        page.size(1440, 900)
        gate.end()


def long_names_fit_in_the_narrowest_window(_, driver):
    provider, model, key = "p" * 44 + "east", "m" * 76 + "mini", "W" * 64
    gate = Incident(f'[[providers]]\nname = "{provider}"\nshape = "chat"\nbase_url = "http://127.0.0.1:9/v1"\n'
                    f'[[models]]\nid = "{model}"\ncontext = "100K"\ntargets = [{{ provider = "{provider}", model = "{model}" }}]\n')
    try:
        long = gate.issue(key)
        for _ in range(5):
            gate.send("x", long, model)
        page = Page(gate, driver)
        for width in [320, 1280]:
            page.size(width, 844)
            page.open("overview", signed=True)
            for view in VIEWS:
                page.go(view)
                time.sleep(0.7)
                assert page.js("return document.documentElement.scrollWidth <= innerWidth"), (view, width)
                assert page.violations() == [], (view, width, page.violations())
            page.go("targets")
            row = page.until(lambda: next((row for row in page.cells("#targetlist") if "…" in row[0]), None))
            assert row[0].endswith("mini") and re.match("(failing|only target, still tried): connect: refused", row[2]), row
            state = page.js("return document.querySelector('#targetlist td:nth-child(3)').offsetWidth")
            assert state > 130, (state, width)
        assert f"{provider}/{model} " in gate.run("status", "--wide").stdout
    finally:
        page.size(1440, 900)
        gate.end()


def budgets_warn_with_words_and_a_date(_, driver):
    gate = Incident()
    try:
        for group, most in [("agents", 1.0), ("research", 0.85)]:
            key = gate.issue(group + "-key", "--group", group)
            used = lambda name=group: next(one["budget"]["used"] for one in gate.api("groups")["data"] if one["name"] == name)
            while used() < most:
                if gate.send("#sim tokens=10", key)[0] == 429:
                    break
        gate.issue("own", "--budget", "5")
        page = Page(gate, driver)
        page.open("spending")
        rows = page.until(lambda: len(page.cells("#budgets")) >= 3 and page.cells("#budgets"))
        assert rows[0][0] == "group agents" and "SPENT" in rows[0][3] and rows[0][5].endswith("UTC"), rows
        assert rows[1][0] == "group research" and "nearly spent" in rows[1][3] and rows[1][4] == "too early to say", rows
        assert [len(page.driver.find_elements(By.CSS_SELECTOR, f"#budgets .share.{kind}")) for kind in ["bad", "warn"]] == [1, 1]
        assert rows[0][6] == "agents-key" and rows[1][6] == "research-key", rows
        marks = page.driver.find_elements(By.CSS_SELECTOR, "#budgets .share b")
        assert len(marks) == 2 * len(rows), "each budget shows the two thresholds of alerts"
        shown = json.loads(gate.run("keys", "show", "own", "--json").stdout)
        own = next(row for row in rows if row[0] == "key own")
        lines = json.loads(gate.run("usage", "--budgets", "--json").stdout)
        report = {f"{one['what']} {one['name']}": one for one in lines}
        assert {row[0]: row[4] for row in rows} == {name: one["forecast"] for name, one in report.items()}, (rows, report)
        from_key = next(one for one in shown["budgets"] if one["unit"] == "usd")
        assert from_key == report["key own"], (from_key, report)
        assert own[2] == f"${shown['cost_used']:.4f} / $5.0000", (own, shown)
        bars = page.until(lambda: page.cells("#limits"))
        first = bars[0]
        assert first[0] == "group agents: budget per month" and first[1].endswith(" / $1.0000") and "SPENT" in first[4], bars
        assert first[3] == "$0.0000" and first[5].endswith("UTC"), bars
        page.go("overview")
        page.until(lambda: any("budget spent" in row[2] and "UTC" in row[2] for row in page.cells("#attention")))
        spent = page.until(lambda: next((row for row in page.cells("#attention") if row[1] == "group agents" and row[3] != "-"), None))
        today = page.js("return day(Date.now())")
        assert spent[3] == f"{today} UTC" or re.match(r"[\d:]{8}$", spent[3]), spent
        assert re.search(rf"group `agents`: budget for a month spent since {today}: ", gate.run("status").stdout), gate.run("status").stdout
        named = lambda: [row[2] for row in page.cells("#attention") if row[1] == "key own"]
        assert not named(), "nothing is used of it"
        page.until(lambda: page.js("return forecasts?.length"))
        page.js("forecasts.forEach(one => one.forecast = 'spent 23:59 UTC'); overview()")
        assert named() and named()[0].endswith("at this pace spent 23:59 UTC"), named()
        page.go("keys")
        page.until(lambda: {"agents-key", "own"} <= {row[0] for row in page.cells("#keylist")})
        limits = {row[0]: row[6] for row in page.cells("#keylist")}
        assert "group agents: " in limits["agents-key"] and limits["own"] == "$0.0000 / $5.0000", limits
        page.js("actions(keyList.find(one => one.name === 'own'))")
        own = page.until(lambda: page.cells("#box"))
        assert own[0][:4] == ["key: budget per month", "$0.0000 / $5.0000", "-", "$5.0000"], own
    finally:
        gate.end()


def cost_of_a_session_equals_the_report(_, driver):
    gate = Incident(server="record_requests = true")
    try:
        for session in ["one", "two", "two"]:
            assert gate.send("#sim tokens=7", prompt_cache_key=session)[0] == 200
        page = Page(gate, driver)
        page.open("spending")
        report = gate.wait(lambda: (lambda lines: len(lines) >= 2 and lines)(json.loads(gate.run("usage", "--by", "session", "--json").stdout)))
        Select(page.at("#by")).select_by_visible_text("session")
        page.until(lambda: len(page.cells("#usage")) == len(report) + 1)
        rows = {row[0]: row for row in page.cells("#usage")[:-1]}
        for line in report:
            row = rows[line["name"] or "(none)"]
            # The key, the client and the last use are in between.
            assert (row[4], row[-1]) == (str(line["requests"]), f"${line['cost_usd']:.4f}"), (row, line)
        two = max(report, key=lambda line: line["requests"])
        page.js("[...document.querySelectorAll('#usage a')].find(one => one.textContent === arguments[0]).click()", two["name"])
        page.until(lambda: len(page.cells("#requestlist")) == two["requests"])
        page.open("requests?session=one")
        page.until(lambda: len(page.cells("#requestlist")) == 1)
        page.open("requests?session=two")
        cost = f"${two['cost_usd']:.4f}"
        page.until(lambda: page.text("#since").endswith(f"2 of them match; they cost {cost}. The whole session: 2 requests, {cost}."))
        page.go("requests")
        page.until(lambda: len(page.cells("#requestlist")) > 2)
        page.at("#q").send_keys("two")
        page.until(lambda: len(page.cells("#requestlist")) == 2, 3)
    finally:
        gate.end()


def each_row_of_the_usage_lists_its_requests(_, driver):
    gate = Incident(server="record_requests = true")
    try:
        agents, bots = gate.issue("agents-key", "--group", "agents"), gate.issue("bots-key", "--group", "bots")
        assert gate.send("x", agents)[0] == 200 and gate.send("x")[0] == 200
        assert gate.send("x", bots, user="ann", prompt_cache_key="s", headers={"x-claude-code-agent-id": "a1"})[0] == 200
        page = Page(gate, driver)
        page.open("spending")
        for what in ["key", "group", "model", "target", "client", "user", "session", "agent", "endpoint"]:
            page.go("spending")
            Select(page.at("#by")).select_by_visible_text(what)
            page.until(lambda: page.cells("#usage") and page.cells("#usage")[-1][-5] == "3" and what in page.text("#usage th").lower(), 30)
            for name, count in [(row[0], int(row[-5])) for row in page.cells("#usage")[:-1] if row[0] != "(none)"]:
                page.go("spending")
                page.js("[...document.querySelectorAll('#usage a')].find(one => one.textContent === arguments[0]).click()", name)
                below = int(what == "group" and name == "agents")
                page.until(lambda: len(page.cells("#requestlist")) == count + below)
        page.go("requests?group=agents")
        page.until(lambda: "group: agents and below" in page.text("#f-more") and [row[2] for row in page.cells("#requestlist")] == ["bots-key", "agents-key"])
    finally:
        gate.end()


def list_does_not_move_while_it_is_read(page, _):
    going = threading.Event()
    def traffic():
        while not going.wait(0.05):
            page.gate.chat(max_tokens=2)
    try:
        page.open("requests")
        threading.Thread(target=traffic, daemon=True).start()
        page.until(lambda: len(page.cells("#requestlist")) > 5)
        page.js("""window.row = document.querySelector('#requestlist tbody tr'); window.id = row.dataset.id
            getSelection().selectAllChildren(row.children[3])""")
        chosen, first = page.js("return getSelection().toString()"), page.js("return id")
        page.until(lambda: not page.at("#fresh").get_attribute("hidden") and int(re.sub(r"\D", "", page.text("#fresh")) or 0) > 20, 30)
        assert page.js("return getSelection().toString()") == chosen and chosen
        assert page.js("return document.querySelector('#requestlist tbody tr').dataset.id") == first
        page.js("getSelection().removeAllRanges(); document.activeElement.blur()")
        ActionChains(page.driver).move_to_element(page.at("h1")).perform()
        page.until(lambda: page.js("return document.querySelector('#requestlist tbody tr').dataset.id !== id"))
        assert page.js("return document.querySelector(`[data-id='${id}']`) === row || !row.isConnected"), "its node is the same"
        page.at("#pause").click()
        first = page.js("return document.querySelector('#requestlist tbody tr').dataset.id")
        count = lambda: int(re.sub(r"\D", "", page.text("#fresh")) or 0)
        page.until(lambda: count() > 5)
        before = count()
        page.until(lambda: count() > before)
        assert page.js("return document.querySelector('#requestlist tbody tr').dataset.id") == first
    finally:
        going.set()
        page.js("document.querySelector('#pause').ariaPressed === 'true' && document.querySelector('#pause').click()")


def a_request_is_found_by_its_id(page, _):
    status, text = page.gate.chat(model="no-such-model")
    found = re.search(r"[0-9a-z]{16,}", json.loads(text)["error"].get("request_id", "") or text)
    assert status == 404 and found, text
    page.open("requests")
    pages = page.js("return history.length")
    page.at("#q").send_keys(found[0])
    page.until(lambda: len(page.cells("#requestlist")) == 1 and found[0] in page.js("return location.hash"), 3)
    assert page.js("return history.length") == pages, "typing makes no history"
    page.js("document.querySelector('#requestlist tbody tr').focus()")
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    detail = page.until(lambda: page.text("#box"))
    assert "Copied" not in detail and "Ctrl+C" not in detail, "Enter only opens it"
    assert found[0] in detail and "no model no-such-model" in detail and "demo" in detail, detail
    page.gate.chat()
    page.go("requests?status=2xx")
    page.until(lambda: page.cells("#requestlist"))
    page.js("document.querySelector('#requestlist tbody tr').click()")
    detail = page.until(lambda: page.text("#box"))
    assert all(word in detail for word in ["attempts", "cost", "tokens", "heron"]), detail
    page.press("Close")
    page.go("requests?q=no-such-request")
    page.until(lambda: "No match. The log has older ones. Kept: all since" in page.text("#requestlist"))


def without_a_token_only_the_sign_in_form_is_shown(_, driver):
    gate = Incident(server='admin_token = { file = "read.token" }')
    try:
        page = Page(gate, driver)
        driver.get("about:blank")
        driver.get(gate.page)
        page.until(lambda: page.at("#v-sign").is_displayed())
        shown = [one for one in driver.find_elements(By.CSS_SELECTOR, "main section, nav") if one.is_displayed()]
        assert [one.get_attribute("id") for one in shown] == ["v-sign"]
        assert page.js("return document.activeElement.id") == "token" and page.text("#wrong") == ""
        for theme in ["dark", "light"]:
            page.theme(theme)
            assert page.violations() == [], (theme, page.violations())
        page.at("#token").send_keys("wrong", Keys.ENTER)
        page.until(lambda: page.text("#wrong") == "This token is not valid. See admin_token and admin_write_token.")
        page.at("#token").clear()
        page.at("#token").send_keys("read-token-of-the-test", Keys.ENTER)
        page.until(lambda: page.text("#may") == "May read" and "Healthy" in page.text("#health"))
        kept = page.js("return document.cookie + JSON.stringify({...localStorage, ...sessionStorage}) + location.href")
        assert "token-of" not in kept and kept.startswith("{}"), kept
        driver.refresh()
        page.until(lambda: page.at("#v-sign").is_displayed())
        driver.get("about:blank")
        driver.get(gate.page + "#token=" + gate.token)
        page.until(lambda: page.text("#may") == "May change keys")
        assert gate.token not in driver.current_url
        gate.stop("serve")
        pathlib.Path(gate.folder, "write.token").write_text("another-token-of-the-test", encoding="utf-8")
        gate.serve()
        page.until(lambda: page.text("#wrong") == "This token is not valid any more.")
        assert not page.at("#banner").is_displayed() and driver.title.startswith("Sign in - Tollgate"), driver.title
        page.browser_log()
    finally:
        gate.end()


def a_key_is_issued_copied_used_changed_rotated_and_revoked(page, _):
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    page.open("keys", signed=True)
    page.until(lambda: page.at("#issue").is_enabled())
    page.at("#issue").click()
    page.fill("name", "by the page")
    page.fill("requests", "50")
    page.at("#yes").click()
    key = page.until(lambda: page.driver.find_elements(By.ID, "secret") and page.text("#secret"))
    page.press("Copy")
    page.until(lambda: "Copied" in page.text("#box"))
    copied = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
    assert copied == key, copied
    page.press("Done")
    page.until(lambda: not page.at("#box").is_displayed())
    assert key not in page.js("return document.documentElement.outerHTML")
    asked = {"model": "heron-large", "messages": [{"role": "user", "content": "Hello"}]}
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{page.gate.client}/v1/chat/completions"]
    curl += ["-H", f"authorization: Bearer {key}", "-H", "content-type: application/json", "-d", json.dumps(asked)]
    assert subprocess.check_output(curl, text=True) == "200", "it works immediately"
    page.act("Edit", "by the page")
    assert page.at("#box [name=requests]").get_attribute("value") == "50"
    # The form sends only the changed fields, so changes by others while it is open are kept.
    one = next(key for key in page.gate.api("keys")["data"] if key["name"] == "by the page")
    page.gate.api("keys/" + one["id"], {"limits": ["requests=40/window"]}, "PATCH")
    page.fill("name", "changed")
    page.fill("models", "heron-small, ibis-small")
    page.at("#yes").click()
    page.until(lambda: any(row[0] == "changed" and row[5] == "heron-small, ibis-small" for row in page.cells("#keylist")))
    assert [limit["total"] for limit in page.gate.api("keys/" + one["id"])["limits"] if limit["setting"] == "requests"][-1] == 40
    page.gate.wait(lambda: page.gate.chat(key=key)[0] == 403)
    for button, said in [("Capture for 1 h", True), ("End capture", False)]:
        page.act(button, "changed")
        assert ("prompts and responses go to a file" in page.text("#box")) == said
        page.at("#yes").click()
        page.until(lambda: not page.at("#box").is_displayed())
        assert (page.gate.api("keys/" + one["id"])["capture_until"] is not None) == said
        page.until(lambda: page.js("keys()") is None)
    page.act("Rotate", "changed")
    page.fill("grace", "1h")
    page.at("#yes").click()
    fresh = page.until(lambda: page.driver.find_elements(By.ID, "secret") and page.text("#secret"))
    assert fresh != key and "The old secret works until" in page.text("#box")
    page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.press("Copy")
    page.until(lambda: "Press Ctrl+C" in page.text("#box"))
    assert page.js("return getSelection().toString().trim()") == fresh
    page.press("Done")
    page.gate.wait(lambda: page.gate.chat(key=fresh, model="heron-small")[0] == 200)
    page.until(lambda: page.js("keys()") is None)
    page.act("Revoke", "changed")
    if page.driver.find_elements(By.CSS_SELECTOR, "#box [name=typed]"):
        page.fill("typed", "changed")
    page.at("#yes").click()
    page.until(lambda: page.text("#said") == "changed is revoked.")
    page.until(lambda: not any(row[0] == "changed" for row in page.cells("#keylist")))
    page.gate.wait(lambda: page.gate.chat(key=fresh, model="heron-small")[0] == 401)
    page.at("#audit summary").click()
    page.until(lambda: [row[2] for row in page.cells("#auditlist")[:5]] == ["revoke", "rotate", "edit", "edit", "edit"])
    page.at("#issue").click()
    page.fill("name", "x")
    page.fill("expires", "tomorrow")
    page.at("#yes").click()
    page.until(lambda: "expires" in page.text("#box [role=alert]"))
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()


def three_hundred_keys_are_searched_and_every_view_fits(page, _):
    for number in range(300):
        page.gate.api("keys", {"name": f"key-{number:03}"})
    page.open("keys")
    page.until(lambda: len(page.cells("#keylist")) == 50)
    page.at("#keyq").send_keys("key-297")
    page.until(lambda: [row[0] for row in page.cells("#keylist")] == ["key-297"])
    page.at("#keyq").clear()
    for width, height in [(390, 844), (1024, 768), (1440, 900)]:
        page.size(width, height)
        for view in VIEWS:
            page.open(view)
            page.until(lambda: "Healthy" in page.text("#health"))
            wide = page.js("return document.documentElement.scrollWidth")
            assert wide == width, (view, width, wide)
    page.open()
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, ".chart svg"))
    for part in ["#attention", "#tiles", "#charts svg"]:
        assert page.js("return document.querySelector(arguments[0]).getBoundingClientRect().bottom", part) <= 900, part
    sizes = page.js("return [...document.querySelectorAll('header a,header button')].map(one => one.offsetHeight).filter(Boolean)")
    assert min(sizes) >= 24, sizes


def axe_finds_no_violation_in_any_view(_, driver):
    gate = Incident()
    try:
        for loaded in [False, True]:
            if loaded:
                for words in ["x", "#sim status=500", "#sim tokens=50"]:
                    gate.send(words, prompt_cache_key="s")
            page, colours = Page(gate, driver), []
            for theme in ["light", "dark"]:
                page.theme(theme)
                page.open("overview", signed=True)
                for view in VIEWS:
                    page.go(view)
                    time.sleep(0.7)
                    assert page.violations() == [], (loaded, theme, view, page.violations())
                colours.append(page.js("return getComputedStyle(document.body).backgroundColor"))
            assert colours[0] != colours[1], colours
            page.theme("light")
    finally:
        gate.end()


def every_action_works_with_the_keyboard(page, _):
    page.open("keys")
    page.js("document.activeElement.blur()")
    keys = lambda *words: ActionChains(page.driver).send_keys(*words).perform()

    def tab_to(found):
        for _ in range(150):
            keys(Keys.TAB)
            if page.js(f"return !!document.activeElement?.matches('{found}')"):
                return
        raise AssertionError(f"Tab does not reach {found}")

    tab_to("#sign")
    keys(Keys.ENTER)
    page.until(lambda: page.js("return document.activeElement.id") == "token")
    keys(page.gate.token, Keys.ENTER)
    page.until(lambda: page.text("#may") == "May change keys")
    tab_to("#issue")
    keys(Keys.ENTER)
    page.until(lambda: page.js("return document.activeElement?.name") == "name")
    keys("by keyboard", Keys.ENTER)
    page.until(lambda: page.driver.find_elements(By.ID, "secret"))
    keys(Keys.ESCAPE)
    assert page.text("#secret").startswith("tg_"), "Escape does not lose a secret that is shown once"
    tab_to("#box .go")
    keys(Keys.ENTER)
    page.until(lambda: not page.driver.find_elements(By.ID, "secret"))
    page.at("#keyq").send_keys("by keyboard")
    tab_to('[aria-label="Change by keyboard"]')
    keys(Keys.ENTER)
    tab_to("#box .stop")
    keys(Keys.ENTER)
    tab_to("#yes")
    keys(Keys.ENTER)
    page.until(lambda: "revoked" in page.text("#said"))
    tab_to('nav [href="#requests"]')
    keys(Keys.ENTER)
    page.until(lambda: page.at("#v-requests").is_displayed())


def stopped_gateway_is_shown_with_the_time_until_it_is_back(_, driver):
    gate = Incident()
    try:
        page = Page(gate, driver)
        page.open("requests")
        page.until(lambda: "Healthy" in page.text("#health"))
        gate.stop("serve")
        page.until(lambda: page.at("#banner").is_displayed(), 6)
        first, until = page.text("#banner"), time.monotonic() + 8
        while time.monotonic() < until:
            assert page.text("#banner") == first and driver.title.startswith("No answer - Tollgate"), (first, driver.title)
            time.sleep(0.3)
        gate.serve()
        page.until(lambda: not page.at("#banner").is_displayed() and "No answer" not in driver.title)
        page.go("overview")
        gate.stop("serve")
        page.until(lambda: page.at("#banner").is_displayed(), 6)
        assert re.match(r"No answer from the gateway since \d\d:\d\d:\d\d\. The figures are of that time\.", page.text("#banner"))
        gate.serve()
        page.until(lambda: not page.at("#banner").is_displayed() and "Healthy" in page.text("#health"))
        # Discards the browser's messages about the failed requests.
        page.browser_log()
    finally:
        gate.end()


def page_contacts_no_other_host_and_hostile_names_stay_text(page, _):
    page.gate.api("keys", {"name": HOSTILE, "labels": {"team": HOSTILE}})
    page.gate.chat(model="</script><img src=x onerror=window.hacked=2>")
    page.browser_log()
    for view in VIEWS:
        page.open(view)
        time.sleep(0.5)
        assert page.js("return window.hacked === undefined && !document.querySelector('main img')")
        asked = page.js("return performance.getEntriesByType('resource').map(one => one.name)")
        own = (page.gate.admin + "/", page.gate.client + "/", "data:")
        assert all(url.startswith(own) for url in asked), asked
        said = page.browser_log()
        assert said == [], said
    page.open("keys")
    page.at("#keyq").send_keys("onerror")
    page.until(lambda: page.at("#keylist td a").get_attribute("title") == HOSTILE)
    text = page.gate.request(page.gate.admin + "/")[1]
    assert len(text) <= 70_000, len(text)
    head = subprocess.check_output(["curl", "-sI", page.gate.admin + "/"], text=True).lower()
    assert "content-security-policy: default-src 'none'" in head and "unsafe-" not in head


def tables_and_help_fit_eighty_columns(_, driver):
    gate = Incident()
    try:
        key = gate.issue(NAME, "--group", "agents", "--budget", "20")
        gate.send("x", key)
        gate.send("#sim status=500", key)
        gate.send("x", model="gpt-5-mini", key=key)
        gate.send("#sim status=500", gate.issue("W" * 64))
        def commands(*path):
            """A command and the commands below it, by its own help."""
            listed = re.search(r"^Commands:\n((?:  .*\n)+)", on_terminal(gate, *path, "--help"), re.M)
            names = re.findall(r"^  (\S+)", listed[1], re.M) if listed else []
            return [list(path)] + [below for name in names if name != "help" for below in commands(*path, name)]
        asked = [["status"], ["keys", "list"], ["usage", "--budgets"], ["requests", "--limit", "50"], ["usage"], ["usage", "--by", "model,day"], ["usage", "--by", "session"]]
        every = commands()
        assert ["keys", "issue"] in every and len(every) > 20, every
        asked += [["models"], ["keys", "show", NAME], ["ledger", "audit"], ["usage", "--by", "session", "--cache"], ["check"]]
        for args in asked + [[*path, "--help"] for path in every]:
            said = on_terminal(gate, *args)
            long = [line for line in said.splitlines() if len(line) > 80]
            assert not long, (args, long)
        said = on_terminal(gate, "requests", "--failed")
        assert all(word in said for word in ["TIME", "STATUS", "KEY", "MODEL", "MS", "ID", "REASON", "status 500"]), said
        failed = json.loads(gate.run("requests", "--failed", "--status", "500", "--json").stdout.splitlines()[-1])
        assert failed["id"][4:12] in said and failed["id"] in on_terminal(gate, "requests", "--id", failed["id"][4:12]), (failed, said)
        said = on_terminal(gate, "ledger", "audit")
        assert re.match(r"TIME +WHO +WHAT .*NAME +CHANGED\n", said) and "WWW\u2026" in said, said
        said = on_terminal(gate, "keys", "list")
        assert all(word in said for word in [NAME, "LAST USE", "USED / BUDGET"]), said
        gate.send("#sim status=503")
        said = on_terminal(gate, "status")
        assert all(word in said for word in ["ANSWERED", "FAILED", "status 503"]), said
        said = on_terminal(gate, "status", columns=40)
        assert re.search(r"\n  target .*\n    \S", said), said
    finally:
        gate.end()


def errors_of_the_command_line_name_the_fix(_, driver):
    gate = Incident(server='admin_token = { file = "read.token" }')
    try:
        assert "Recording begins now; failures are kept since 20" in gate.run("requests").stderr
        unknown = gate.run("requests", "--key", "nosuch", check=False)
        assert unknown.returncode == 1 and "no key has the id or the name `nosuch`" in unknown.stderr, unknown
        taken = gate.run("serve", check=False)
        assert "it is in use; is another gateway running?" in taken.stderr, taken.stderr
        assert json.loads(gate.run("check", "--json").stdout)["ok"] is True
        assert json.loads(gate.run("ready", "--json").stdout)["ready"] is True
        pathlib.Path(gate.folder, "read.token").write_text("another-token", encoding="utf-8")
        refused = gate.run("requests", check=False)
        assert "refuses the token in " in refused.stderr and "read.token" in refused.stderr, refused.stderr
        config = pathlib.Path(gate.folder, "tollgate.toml").read_text(encoding="utf-8")
        pathlib.Path(gate.folder, "gone.toml").write_text(config.replace("sqlite:t.db", "sqlite:no/such/t.db"), encoding="utf-8")
        gone = gate.run("usage", "--config", "gone.toml", check=False)
        assert gone.returncode == 1 and "there is no ledger at " in gone.stderr, gone
        pathlib.Path(gate.folder, "new.toml").write_text(config.replace("sqlite:t.db", "sqlite:new.db"), encoding="utf-8")
        for empty in [["keys", "list"], ["usage"]]:
            assert "No keys yet: tollgate keys issue --name NAME" in gate.run(*empty, "--config", "new.toml").stderr, empty
        # In the manual's words, on a terminal.
        assert "set $TG_READ (server.admin_token)" in on_terminal(gate, "requests", "--config", gate.with_unset_token("TG_READ"))
        for listens, key in [("client", "listen"), ("admin", "admin_listen")]:
            other = config.replace(f':{gate.ports["admin" if key == "listen" else "client"]}"', f':{free_port()}"').replace("t.db", "other.db")
            pathlib.Path(gate.folder, "taken.toml").write_text(other, encoding="utf-8")
            said = gate.run("serve", "--config", "taken.toml", check=False).stderr
            assert f"127.0.0.1:{gate.ports[listens]}: it is in use; is another gateway running? See `{key}` in [server]" in said, said
        pathlib.Path(gate.folder, "shape.toml").write_text(config.replace('shape = "chat"', 'shape = "message"'), encoding="utf-8")
        assert '(did you mean "messages"?), found "message"' in on_terminal(gate, "check", "--config", "shape.toml")
        assert "2 models, 2 plans" in on_terminal(gate, "check")
        if os.geteuid() == 0:
            # A folder and a program that others may use, and a ledger that they may not.
            os.chmod(gate.folder, 0o755)
            program = shutil.copy(BINARY, gate.folder)
            said = subprocess.run([program, "usage"], cwd=gate.folder, capture_output=True, text=True, check=False, user=65534, group=65534, extra_groups=[])
            assert "cannot read the ledger t.db: permission denied (owner root, mode 600)" in said.stderr, said
    finally:
        gate.end()


def each_listener_names_the_other_and_the_log_has_the_cause(_, driver):
    gate = Incident(server="record_requests = true")
    try:
        assert gate.send("x", "sk-proj-of-another-service")[0] == 401
        assert "health and metrics are on the gateway's `admin_listen` address" in gate.request(gate.client + "/healthz")[1]
        assert f"clients use {gate.client}; " in gate.request(gate.admin + "/v1/models")[1]
        assert gate.send("#sim status=400 code=bad_value param=temperature")[0] == 400
        line = gate.wait(lambda: next((one for one in gate.api("requests")["data"] if one.get("upstream_code")), None))
        assert line["reason"].startswith("status 400: "), line
        malformed = next(one for one in gate.api("requests")["data"] if one["status"] == 401)
        assert malformed["cause"] == "key: malformed", malformed
    finally:
        gate.end()


def init_demo_and_serve_print_the_next_step(page, _):
    folder = page.gate.folder
    said = subprocess.run([BINARY, "init", "--config", "first.toml"], cwd=folder, capture_output=True, text=True, check=True,
                          env={**os.environ, "OPENAI_API_KEY": "sk-x"})
    assert said.stdout == "wrote first.toml\n", said
    for command in ["tollgate check --connect", "tollgate keys issue --name NAME", "tollgate serve"]:
        assert command in said.stderr, said
    written = pathlib.Path(folder, "first.toml").read_text(encoding="utf-8")
    assert re.search(r"admin_listen = .*# dashboard, admin API, health, metrics", written), written
    lines = page.gate.printed().splitlines()
    assert any("Dashboard: " in line and "#token=" in line for line in lines[:4]), lines[:6]
    ports = [free_port(), free_port()]
    config = written.replace("8080", str(ports[0])).replace("8081", str(ports[0])).replace("9090", str(ports[1])).replace("9091", str(ports[1]))
    pathlib.Path(folder, "first.toml").write_text(config, encoding="utf-8")
    said = first_lines_on_terminal([BINARY, "serve", "--config", "first.toml"], folder)
    first, second = said.splitlines()[:2]
    assert re.match(r"serving http://127\.0\.0\.1:\d+, dashboard http://127\.0\.0\.1:\d+/$", first) and second.startswith("{"), said


def charts_have_axes_keyboard_access_and_a_table(page, _):
    page.gate.chat()
    page.open()
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, ".chart rect"))
    charts = page.driver.find_elements(By.CSS_SELECTOR, ".chart")
    assert [chart.get_attribute("data-chart") for chart in charts] == ["Requests", "Cost"]
    picture = charts[0].find_element(By.TAG_NAME, "svg")
    page.js("arguments[0].focus()", picture)
    ActionChains(page.driver).send_keys(Keys.ARROW_RIGHT).perform()
    words = charts[0].find_element(By.CSS_SELECTOR, "small[aria-live]").text
    assert re.search(r"\d+ ok, \d+ client left, \d+ refused, \d+ failed$", words), words
    charts[0].find_element(By.TAG_NAME, "summary").click()
    assert charts[0].find_elements(By.CSS_SELECTOR, "tbody tr")
    charts[0].find_element(By.TAG_NAME, "summary").click()
    page.js("document.activeElement.blur()")
    ActionChains(page.driver).move_to_element(page.at("h1")).perform()
    Select(page.at("#span")).select_by_value("30")
    page.until(lambda: "per day" in page.text("#charts"))


def figures_equal_the_report_and_the_metrics(page, _):
    gate = page.gate
    for model in ["heron-small", "ibis-large", "heron-small"]:
        assert gate.chat(model=model, stream=model == "ibis-large")[0] == 200
    page.open("spending")
    Select(page.at("#by")).select_by_visible_text("model")
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, '#usage a[href*="model="]'))
    report = gate.api("usage?by=model")["data"]
    shown = {row[0]: [int(re.sub(r"\D", "", cell)) for cell in (row[1], row[4])] for row in page.cells("#usage")[:-1]}
    assert shown == {line["name"]: [line["requests"], line["total_tokens"]] for line in report}, (shown, report)
    metrics = gate.request(gate.admin + "/metrics")[1]
    for name, (requests, _) in shown.items():
        counted = re.findall(rf'tollgate_requests_total{{endpoint="\w+",model="{name}",status="200"}} (\d+)', metrics)
        assert sum(map(int, counted)) == requests, (name, counted, requests)


def playground_works_in_both_formats_streamed_and_complete(page, _):
    page.open("try")
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#model option") and page.driver.find_elements(By.CSS_SELECTOR, "#where option"))
    assert not page.at("#blocked").is_displayed()
    page.at("#pkey").send_keys(page.gate.key)
    for shape in ["chat", "messages"]:
        for streams in [True, False]:
            Select(page.at("#shape")).select_by_value(shape)
            Select(page.at("#model")).select_by_visible_text("ibis-small" if shape == "chat" else "heron-small")
            if page.at("#stream").is_selected() != streams:
                page.at("#stream").click()
            page.at("#play .go").click()
            page.until(lambda: "tokens" in page.text("#took"))
            assert page.text("#answer"), (shape, streams)
            assert re.search(r"; \d+ \+ \d+ tokens$", page.text("#took")), page.text("#took")
    page.at("#pkey").clear()
    page.at("#pkey").send_keys("wrong")
    page.at("#play .go").click()
    page.until(lambda: "key" in page.text("#took"))
    # The browser's own word for that answer.
    page.browser_log()


def playground_shows_immediately_that_cors_blocks_it(_, driver):
    gate = Incident()
    try:
        page = Page(gate, driver)
        page.open("try")
        page.until(lambda: f'cors_origins = ["{gate.admin}"]' in page.text("#blocked") and "curl" in page.text("#blocked"))
        page.browser_log()
    finally:
        gate.end()


def requests_missed_by_the_feed_are_counted(page, _):
    page.open("requests")
    told = 'event: missed\\ndata: {"requests":4001}\\n\\n'
    page.js(
        "const real = fetch; window.fetch = (url, ...more) => url.endsWith('/live')"
        f" ? Promise.resolve(new Response('{told}')) : real(url, ...more); following = false; follow()"
    )
    page.until(lambda: page.text("#missed").startswith("4\u2009001 more"))


def page_uses_at_most_one_percent_of_a_core(page, _):
    page.open()
    used = lambda: page.gate.api("status")["cpu_us"]
    before, began = used(), time.monotonic()
    time.sleep(6)
    share = (used() - before) / 1e6 / (time.monotonic() - began)
    assert share <= 0.01, f"{share:.3f} of a core"


def small(place):
    from PIL import Image

    Image.open(place).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(place, optimize=True)


def pictures(driver, folder):
    """The picture of the README, as small as it may be and still be read, and each view in light, dark and phone."""
    gate = Gate(str(pathlib.Path(__file__).parents[2] / "scripts" / "demo-traffic"))
    try:
        time.sleep(float(os.environ.get("PAGE_SECONDS", "900")))
        page, views = Page(gate, driver), pathlib.Path(folder) / "views"
        views.mkdir(parents=True, exist_ok=True)
        for theme, width, height in [("light", 1440, 900), ("dark", 1440, 900), ("phone", 390, 844)]:
            page.theme("light" if theme == "phone" else theme)
            page.size(width, height)
            for view in VIEWS:
                page.open(view)
                time.sleep(2)
                place = views / f"{view}-{theme}.png"
                driver.save_screenshot(str(place))
                small(place)
        for theme in ["light", "dark"]:
            page.theme(theme)
            page.size(1100, 680)
            page.open()
            time.sleep(2)
            place = pathlib.Path(folder) / f"page-{theme}.png"
            driver.save_screenshot(str(place))
            small(place)
        page.theme("light")
    finally:
        gate.end()


CASES = [
    what_needs_attention_is_sorted_by_urgency_and_opened,
    more_than_a_hundred_requests_are_listed_on_demand,
    a_target_that_was_only_refused_stays_failing_after_its_cool_down,
    a_key_whose_requests_are_all_refused_needs_attention,
    attempts_that_hang_are_shown_with_the_age_of_the_oldest,
    a_target_hangs_if_clients_leave_before_the_first_byte,
    nothing_is_said_to_be_right_before_everything_is_loaded,
    focus_and_a_long_press_outlast_a_refresh,
    long_names_are_cut_and_no_view_is_wider_than_the_window,
    long_names_fit_in_the_narrowest_window,
    first_look_shows_everything_that_failed_before,
    every_reason_names_its_limit_field_name_or_cause,
    stopped_provider_is_shown_with_cause_and_start_until_it_is_back,
    the_cause_of_a_target_is_that_of_most_failures,
    dashboard_and_status_have_the_same_words,
    shares_have_one_rule_everywhere,
    a_slow_target_is_shown_with_its_start_and_its_usual_time,
    budgets_warn_with_words_and_a_date,
    cost_of_a_session_equals_the_report,
    each_row_of_the_usage_lists_its_requests,
    list_does_not_move_while_it_is_read,
    a_request_is_found_by_its_id,
    without_a_token_only_the_sign_in_form_is_shown,
    a_key_is_issued_copied_used_changed_rotated_and_revoked,
    every_action_works_with_the_keyboard,
    three_hundred_keys_are_searched_and_every_view_fits,
    axe_finds_no_violation_in_any_view,
    stopped_gateway_is_shown_with_the_time_until_it_is_back,
    page_contacts_no_other_host_and_hostile_names_stay_text,
    tables_and_help_fit_eighty_columns,
    errors_of_the_command_line_name_the_fix,
    each_listener_names_the_other_and_the_log_has_the_cause,
    init_demo_and_serve_print_the_next_step,
    charts_have_axes_keyboard_access_and_a_table,
    figures_equal_the_report_and_the_metrics,
    playground_works_in_both_formats_streamed_and_complete,
    playground_shows_immediately_that_cors_blocks_it,
    requests_missed_by_the_feed_are_counted,
    page_uses_at_most_one_percent_of_a_core,
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
                case(page, driver)
                passed += 1
                print(f"ok {case.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {case.__name__}\n{traceback.format_exc()}", flush=True)
        if os.environ.get("PAGE_SHOTS"):
            pictures(driver, os.environ["PAGE_SHOTS"])
    finally:
        driver.quit()
        gate.end()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
