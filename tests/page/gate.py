"""Gateways for the tests of the dashboard, and the dashboard in headless Chromium, controlled by Selenium."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BINARY = os.environ["TOLLGATE_BIN"]
AXE = pathlib.Path(os.environ["PAGE_AXE"]).read_text(encoding="utf-8")
TIMEOUT = 10


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Gate:
    """`tollgate demo`, or another program that prints as much, started without any set-up."""

    def __init__(self, *program):
        self.folder = tempfile.mkdtemp(prefix="tollgate-page-")
        self.out = open(os.path.join(self.folder, "out"), "w+", encoding="utf-8")
        listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.client, self.admin = f"http://{listen}", f"http://{admin}"
        program = program or (BINARY, "demo", "--examples")
        args = [*program, "--listen", listen, "--admin-listen", admin, "--pace", "300"]
        environment = {**os.environ, "TMPDIR": self.folder}
        self.process = subprocess.Popen(args, stdout=self.out, stderr=subprocess.STDOUT, env=environment)
        text = self.wait(lambda: self.printed() if "/metrics" in self.printed() else None)
        self.key = re.search(r"OPENAI_API_KEY=(\S+)", text)[1]
        self.signed, self.token = re.search(r"Dashboard: (\S+) \(admin token: (\w+)\)", text).groups()
        self.page = self.admin + "/"

    def printed(self):
        self.out.flush()
        return pathlib.Path(self.out.name).read_text(encoding="utf-8")

    def wait(self, condition, timeout=TIMEOUT):
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {timeout} s")

    def request(self, url, body=None, token=None, method=None, headers=()):
        headers = {"content-type": "application/json", **dict(headers)}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def api(self, path, body=None, method=None):
        status, text = self.request(f"{self.admin}/admin/v1/{path}", body, self.token, method)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def chat(self, key=None, model="heron-large", **more):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
        return self.request(f"{self.client}/v1/chat/completions", body, key or self.key)

    def end(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)
        shutil.rmtree(self.folder, ignore_errors=True)


def browser():
    options = webdriver.ChromeOptions()
    for flag in ["headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars", "window-size=1440,900"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    options.binary_location = chromium
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))


class Incident(Gate):
    """`tollgate serve` with providers that can be stopped, groups with budgets, and keys that reach their limits."""

    def __init__(self, server="", write="write-token-of-the-test", record=False):
        self.folder, self.token, self.processes = tempfile.mkdtemp(prefix="tollgate-page-"), write, {}
        self.ports = {name: free_port() for name in ["client", "admin", "sim", "spare"]}
        self.client, self.admin = [f"http://127.0.0.1:{self.ports[name]}" for name in ["client", "admin"]]
        self.page = self.admin + "/"
        pathlib.Path(self.folder, "write.token").write_text(write, encoding="utf-8")
        pathlib.Path(self.folder, "read.token").write_text("read-token-of-the-test", encoding="utf-8")
        target = lambda provider: f'{{ provider = "{provider}", model = "m" }}'
        model = lambda name, targets: (f'[[models]]\nid = "{name}"\ncontext = "100K"\ninput_price = 1000.0\n'
                                       f'output_price = 1000.0\ntargets = [{targets}]\n')
        provider = lambda name: (f'[[providers]]\nname = "{name}"\nshape = "chat"\n'
                                 f'base_url = "http://127.0.0.1:{self.ports[name]}/v1"\n')
        text = (f'[server]\nlisten = "127.0.0.1:{self.ports["client"]}"\nadmin_listen = "127.0.0.1:{self.ports["admin"]}"\n'
                f'admin_write_token = {{ file = "write.token" }}\n{server}\n[store]\nurl = "sqlite:t.db"\n'
                f'[upstream]\nbreaker_cooldown = "3s"\n{provider("sim")}{provider("spare")}'
                f'{model("small", target("sim"))}{model("two", target("sim") + ", " + target("spare"))}'
                '[[plans]]\nname = "open"\n[[plans]]\nname = "few"\nrequests = 1\nwindow = "24h"\n'
                '[[groups]]\nname = "agents"\nbudget = 1.0\n[[groups]]\nname = "research"\nbudget = 1.0\n'
                '[[groups]]\nname = "bots"\nparent = "agents"\n'
                '[alerts]\nurl = "http://127.0.0.1:9/"\nbudget = [60, 90]\n')
        pathlib.Path(self.folder, "tollgate.toml").write_text(text, encoding="utf-8")
        self.key = self.issue("main")
        self.start_provider("sim")
        self.start_provider("spare")
        self.serve()

    def run(self, *args, check=True):
        return subprocess.run([BINARY, *args], cwd=self.folder, capture_output=True, text=True, check=check)

    def with_unset_token(self, variable):
        """Writes a configuration whose admin token is in an unset environment variable."""
        config = pathlib.Path(self.folder, "tollgate.toml").read_text(encoding="utf-8")
        config = re.sub(r"admin_token = {.*}", f'admin_token = {{ env = "{variable}" }}', config)
        pathlib.Path(self.folder, "unset.toml").write_text(config, encoding="utf-8")
        return "unset.toml"

    def issue(self, name, *more):
        return self.run("keys", "issue", "--name", name, *more).stdout.strip().splitlines()[-1].split()[-1]

    def start(self, name, *args):
        out = open(os.path.join(self.folder, name), "a", encoding="utf-8")
        self.processes[name] = subprocess.Popen([BINARY, *args], cwd=self.folder, stdout=out, stderr=out)

    def start_provider(self, name):
        self.start(name, "provider", "--listen", f"127.0.0.1:{self.ports[name]}", "--pace", "0")
        self.wait(lambda: self.is_open(self.ports[name]))

    def serve(self):
        self.start("serve", "serve")
        self.wait(lambda: self.is_open(self.ports["admin"]))

    @staticmethod
    def is_open(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def stop(self, name):
        self.processes[name].terminate()
        self.processes.pop(name).wait(TIMEOUT)

    def send(self, words, key=None, model="small", headers=(), **more):
        body = {"model": model, "messages": [{"role": "user", "content": words}], **more}
        return self.request(f"{self.client}/v1/chat/completions", body, key or self.key, headers=headers)

    def end(self):
        for name in list(self.processes):
            self.stop(name)
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    def __init__(self, gate, driver):
        self.gate, self.driver = gate, driver

    def js(self, text, *args):
        return self.driver.execute_script(text, *args)

    def at(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.at(selector).text

    def until(self, condition, timeout=TIMEOUT):
        def safe(_):
            try:
                return condition()
            except StaleElementReferenceException:
                return False
        try:
            return WebDriverWait(self.driver, timeout, 0.05).until(safe)
        except TimeoutException as late:
            seen = self.js("return document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"not within {timeout} s; {self.browser_log()}; the page shows: {seen}") from late

    def open(self, view="overview", signed=False):
        self.driver.get("about:blank")
        self.driver.get(self.gate.page + (f"#token={self.gate.token}" if signed else "#" + view))
        if signed:
            self.until(lambda: self.text("#may") == "May change keys")
            self.go(view)
        self.until(lambda: "\u25cf" in self.text("#health"))

    def go(self, view):
        self.js("location.hash = arguments[0]", view)
        self.until(lambda: self.at("#v-" + view.split("?")[0]).is_displayed())

    def tile(self, name):
        # In a single script, since the page redraws the tiles every other second.
        tiles = "[...document.querySelectorAll('#tiles div')].map(one => [one.children[1].firstChild.textContent, one.children[0].innerText])"
        return dict(self.js(f"return {tiles}")).get(name, "")

    def requests(self):
        return int(re.sub(r"\D", "", self.tile("requests, last hour")) or -1)

    def cells(self, selector):
        rows = f"[...document.querySelectorAll('{selector} tbody tr')].map(row => [...row.children].map(cell => cell.innerText.trim()))"
        return self.js(f"return {rows}")

    def act(self, name, key):
        # In a single script, since the page redraws its keys from time to time.
        button = json.dumps(f'#keylist button[aria-label="Change {key}"]')
        press = f"const button = document.querySelector({button}); button?.click(); return !!button"
        self.until(lambda: self.js(press))
        self.press(name)

    def press(self, name):
        self.js("[...document.querySelectorAll('#box button')].find(one => one.textContent === arguments[0]).click()", name)

    def fill(self, name, value):
        found = self.at(f"#box [name={name}]")
        found.clear()
        found.send_keys(value)

    def browser_log(self):
        wanted = ["SEVERE", "WARNING"]
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in wanted]

    def violations(self):
        self.driver.execute_script(AXE)
        found = self.driver.execute_async_script("axe.run(document, {}).then(arguments[arguments.length - 1])")
        return [(violation["id"], [node["html"][:120] for node in violation["nodes"][:3]]) for violation in found["violations"]]

    def theme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
