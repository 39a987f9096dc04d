"""Prepares a run: configurations of all subjects, certificates, and a ledger with keys."""
import shutil, subprocess

from .rig import GATEWAY, KEYS, PORTS, WORK, log


def configure():
    local = lambda name: f"127.0.0.1:{PORTS[name]}"
    provider = lambda name, shape, base, more="": (
        f'[[providers]]\nname = "{name}"\nshape = "{shape}"\nbase_url = "{base}"\n{more}\n')
    model = lambda name, target: (
        f'[[models]]\nid = "{name}"\ncontext = "1M"\ninput_price = 2.5\noutput_price = 10.0\n'
        f'targets = [{{ provider = "{target}", model = "upstream-model-2026-11-01" }}]\n\n')
    # Eight equal targets. Session affinity keeps a conversation on one of them.
    eight = ", ".join(f'{{ provider = "plain", model = "upstream-model-{n}", priority = 1 }}' for n in range(8))
    equals = f'[[models]]\nid = "eight"\ncontext = "1M"\ntargets = [{eight}]\n\n'
    vectors = ('[[models]]\nid = "vectors"\ncontext = "8K"\nserves = ["embeddings"]\ninput_price = 2.5\noutput_price = 0\n'
               'targets = [{ provider = "plain", model = "upstream-model-2026-11-01" }]\n\n')
    tls = f'ca_file = "{WORK}/ca.pem"\naddresses = ["{local("tls")}"]\n'
    limits = ('tokens = 1_000_000_000_000\nrequests = 1_000_000_000\ntokens_per_window = 1_000_000_000_000\n'
              'concurrency = 100_000\n')
    config = lambda listen, admin, limits, ledger="ledger": (
        f'default_model = "bench"\n[server]\nlisten = "{local(listen)}"\nadmin_listen = "{local(admin)}"\n'
        f'[store]\nurl = "sqlite:{WORK}/{ledger}.db"\n\n'
        + provider("plain", "chat", f"http://{local('up')}/v1")
        + provider("slow", "chat", f"http://{local('slow')}/v1")
        + provider("near", "chat", f"http://{local('near')}/v1")
        + provider("crossed", "messages", f"http://{local('up')}")
        + provider("answers", "responses", f"http://{local('up')}/v1")
        + provider("secure", "chat", f"https://localhost:{PORTS['tls']}/v1", tls)
        + model("bench", "plain") + model("slow", "slow") + model("near", "near") + model("crossed", "crossed")
        + model("answers", "answers") + model("secure", "secure") + equals + vectors + f'[[plans]]\nname = "team"\n{limits}'
        # The gateway without limits has only the plan `team`.
        + ('[[plans]]\nname = "spent"\ntokens = 1\n' if limits else ''))
    text = config("gateway", "admin", limits)
    (WORK / "tollgate.toml").write_text(text)
    (WORK / "ungoverned.toml").write_text(config("ungoverned", "ungoverned_admin", ""))
    # A tree of groups, each with a budget and limits that are never reached.
    tree = [("one", ""), ("two", 'parent = "one"\n'), ("three", 'parent = "two"\n'), ("four", 'parent = "three"\n')]
    groups = "".join(f'[[groups]]\nname = "{name}"\n{parent}budget = 1_000_000.0\n{limits}' for name, parent in tree)
    (WORK / "grouped.toml").write_text(config("grouped", "grouped_admin", limits, "grouped") + groups)
    secured = f'[server]\ntls = {{ cert = "{WORK}/cert.pem", key = "{WORK}/key.pem" }}\n'
    (WORK / "secured.toml").write_text(text.replace("[server]\n", secured))
    # nginx is a plain relay with keep-alive on both sides. Every location repeats all headers, since a location with
    # one `proxy_set_header` inherits none.
    location = "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;"
    pools = "".join(f"upstream {name} {{ server {local(name)}; keepalive 4096; keepalive_requests 100000000; }}\n"
                    for name in ("up", "slow", "near", "tls"))
    # A prefix of the path selects the upstream, since nginx does not read bodies.
    servers = f"""
  server {{ listen {local('nginx')} backlog=4096;
    location /v1/ {{ proxy_pass http://up; {location} }}
    location /stream/v1/ {{ proxy_pass http://up/v1/; proxy_buffering off; {location} }}
    location /slow/v1/ {{ proxy_pass http://slow/v1/; proxy_buffering off; {location} }}
    location /near/v1/ {{ proxy_pass http://near/v1/; {location} }}
    location /near-stream/v1/ {{ proxy_pass http://near/v1/; proxy_buffering off; {location} }}
    location /tls/v1/ {{ proxy_pass https://tls/v1/; proxy_ssl_name localhost; proxy_ssl_server_name on;
      proxy_ssl_protocols TLSv1.2 TLSv1.3; proxy_ssl_verify on; proxy_ssl_trusted_certificate {WORK}/ca.pem;
      {location} }} }}"""
    paths = "".join(f"{part}_temp_path {WORK}/nginx/{part};\n" for part in
                    ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    common = (f"worker_processes 1; pid {{pid}}; error_log {WORK}/nginx/error.log crit; daemon off;\n"
              f"events {{{{ worker_connections 9000; }}}}\nhttp {{{{ access_log off; keepalive_requests 100000000;\n"
              f"keepalive_timeout 600s; client_body_buffer_size 64k; {paths}")
    (WORK / "nginx").mkdir(exist_ok=True)
    (WORK / "nginx.conf").write_text(common.format(pid=f"{WORK}/nginx/pid") + pools + servers + "\n}\n")
    text = "The heron waits in the shallow water and stands; it is patient, grey and exact. " * 8
    frame = ('{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1790000000,'
             '"model":"upstream-model-2026-11-01","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},'
             '"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":271,"completion_tokens":83,'
             '"total_tokens":354}}')
    answer = frame % text[:622 - len(frame) + 2]
    (WORK / "tls.conf").write_text(
        common.format(pid=f"{WORK}/nginx/tls.pid")
        + f"server {{ listen {local('tls')} ssl backlog=4096; ssl_certificate {WORK}/cert.pem;\n"
          f"ssl_certificate_key {WORK}/key.pem; location / {{ default_type application/json;\n"
          f"return 200 '{answer}'; }} }}\n}}\n")
    (WORK / "haproxy.cfg").write_text(
        "global\n  maxconn 9000\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n"
        "  timeout server 600s\n  option http-keep-alive\n  option http-no-delay\n  http-reuse always\n"
        f"frontend in\n  bind {local('haproxy')} backlog 4096\n  use_backend slow if {{ path_beg /slow/ }}\n"
        "  use_backend near if { path_beg /near }\n  default_backend up\n"
        + "".join(f"backend {name}\n  http-request replace-path ^/[a-z-]+/v1/(.*) /v1/\\1 if !{{ path_beg /v1/ }}\n"
                  f"  server s1 {local(name)} pool-max-conn -1\n" for name in ("up", "slow", "near")))


def certificates():
    if (WORK / "cert.pem").exists():
        return
    ssl = lambda *args: subprocess.run(["openssl", *args], cwd=WORK, check=True, capture_output=True)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "3650", "-subj", "/CN=bench authority",
        "-addext", "basicConstraints=critical,CA:TRUE")
    ssl("req", *curve, "-keyout", "key.pem", "-out", "cert.csr", "-subj", "/CN=localhost")
    (WORK / "cert.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    ssl("x509", "-req", "-in", "cert.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem",
        "-days", "3650", "-extfile", "cert.ext")


def issue_keys():
    """Creates, once, a ledger with 1,000 keys and one with 1,000 keys in a group. Each run starts with copies."""
    seed = WORK / "seed"
    ready = seed / "keys"
    names = ("keys", "keys-spent", "keys-unknown", "keys-grouped")
    if all((seed / name).exists() for name in names) and len(ready.read_text().split()) == KEYS:
        for name in names:
            shutil.copy(seed / name, WORK)
        return
    shutil.rmtree(seed, ignore_errors=True)
    seed.mkdir()
    log(f"issuing {KEYS} keys ...")
    for ledger in ledgers(WORK):
        ledger.unlink()

    def issue(name, plan, config="tollgate.toml", *more):
        command = [GATEWAY, "keys", "issue", "--config", WORK / config, "--name", name, "--plan", plan, *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    keys = "".join(issue(f"k{number}", "team") for number in range(KEYS))
    (seed / "keys-spent").write_text(issue("spent", "spent"))
    # The checksum is wrong, so the gateway does not look it up in the ledger.
    (seed / "keys-unknown").write_text("tg_live_" + "A" * 40 + "000000\n")
    grouped = (issue(f"k{number}", "team", "grouped.toml", "--group", "four") for number in range(KEYS))
    (seed / "keys-grouped").write_text("".join(grouped))
    for ledger in ledgers(WORK):
        shutil.copy(ledger, seed)
    ready.write_text(keys)
    for name in names:
        shutil.copy(seed / name, WORK)


def ledgers(folder, name="*"):
    """Files of the two ledgers, including SQLite's additional files."""
    return [file for one in ("ledger", "grouped") if name in ("*", one) for file in folder.glob(f"{one}.db*")]


def fresh_ledger(name="ledger"):
    for ledger in ledgers(WORK, name):
        ledger.unlink()
    for ledger in ledgers(WORK / "seed", name):
        shutil.copy(ledger, WORK)
