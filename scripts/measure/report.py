"""The printed table, and its values by round."""
import re, statistics

from .rig import log


END = "<!-- end -->"


def replace_block(page, begin, text):
    """Replaces the text between the marks `begin` and `END` in a file."""
    before, rest = page.read_text().split(begin, 1)
    page.write_text(f"{before}{begin}\n{text}\n{END}{rest.split(END, 1)[1]}")


def spread(values, digits=2):
    if not values:
        return "-"
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]" if len(values) > 1 else f"{middle:.{digits}f}"


class Table:
    def __init__(self):
        self.rows = []

    def add(self, number, what, goal, gateway, nginx="", haproxy="", value=None, limit=None):
        met = "" if value is None or limit is None else ("yes" if value <= limit else "NO")
        self.rows.append((str(number), what, goal, gateway, nginx, haproxy, met))
        log(f"  {number}: {what}: {gateway} | {nginx} | {haproxy} | {goal} {met}")

    def text(self):
        """The rows in the order of their numbers."""
        head = ("#", "what", "goal", "Tollgate", "nginx", "haproxy", "met")
        rows = sorted(self.rows, key=lambda row: float(re.match(r"\d+", row[0])[0]))
        return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
                          *("| " + " | ".join(row) + " |" for row in rows)])


class Rounds:
    """Values by metric and subject, one per round. Ratios compare values of the same round."""

    def __init__(self):
        self.found = {}

    def add(self, what, subject, value):
        self.found.setdefault((what, subject), []).append(value)

    def get(self, what, subject):
        return self.found.get((what, subject), [])

    def ratios(self, what, subject, other="nginx"):
        return [a / b for a, b in zip(self.get(what, subject), self.get(what, other))]


def report(rounds, fresh, wanted, table):
    median = statistics.median

    def ratio_row(number, what, goal, scene, limit):
        # The figure that is shown, with two digits, is the one that is judged.
        own = round(median(rounds.ratios(scene, "gateway")), 2)
        cell = lambda name: (f"{spread(rounds.ratios(scene, name))}; {median(rounds.get(scene, name)):.1f} µs"
                             if rounds.get(scene, name) else "-")
        table.add(number, what, goal, cell("gateway"), f"1; {spread(rounds.get(scene, 'nginx'), 1)} µs",
                  cell("haproxy"), own, limit)

    def bare_row(number, scene):
        found = f"{spread(rounds.ratios(scene, 'bare'))}; {median(rounds.get(scene, 'bare')):.1f} µs"
        table.add(number, "a bare relay instead of the gateway, ratio to nginx", "", found)

    if 1 in wanted:
        ratio_row("1", "CPU per request, 32 connections, ratio to nginx", "<= 0.75", "cpu32", 0.75)
        loop = [a / b for a, b in zip(rounds.get("cpu32-loop", "gateway"), rounds.get("cpu32", "nginx"))]
        table.add("1b", "the same, only the event loop", "", spread(loop))
        bare_row("1c", "cpu32")
    if 2 in wanted:
        ratio_row("2", "CPU per request, 256 connections, ratio to nginx", "<= 0.78", "cpu256", 0.78)
        bare_row("2c", "cpu256")
    if 3 in wanted:
        ratio_row("3", "CPU per request, TLS upstream, ratio to nginx", "<= 0.92", "tls", 0.92)
    if 6 in wanted:
        ratio_row("6", "CPU per stream event, 200 streams, ratio to nginx unbuffered", "<= 0.85", "sse", 0.85)
    if 8 in wanted:
        names = ("gateway", "nginx", "haproxy")
        for part, goal in (("one-p50", "<= 18"), ("one-p99", "<= nginx's")):
            added = {name: [a - b for a, b in zip(rounds.get(part, name), rounds.get(part, "direct"))]
                     for name in names}
            limit = 18 if part == "one-p50" else median(added["nginx"])
            table.add("8", f"added latency, one connection, one core, {part[4:]}, µs", goal,
                      *(spread(added[name], 1) for name in names), value=median(added["gateway"]), limit=limit)
        for count in (32, 256):
            p99 = {name: rounds.get(f"cpu{count}-p99", name) for name in names}
            table.add("8", f"p99 at {count} connections, ms", "<= nginx's",
                      *(spread([value / 1000 for value in p99[name]]) for name in names),
                      value=median(p99["gateway"]), limit=median(p99["nginx"]))
    if 9 in wanted:
        firsts = {name: rounds.get("first", name) for name in ("gateway", "nginx", "haproxy")}
        table.add("9", "SSE first byte p50, one core, µs", "<= nginx's", *(spread(v, 1) for v in firsts.values()),
                  value=median(firsts["gateway"]), limit=median(firsts["nginx"]))
    if 11 in wanted:
        # As above, the figure that is shown is judged.
        mb = lambda value: f"{value / 1e6:.1f}"
        loaded = {name: max(rounds.get("first256-rss", name)) for name in fresh}
        later = {name: max(rounds.get("cpu256-rss", name)) for name in fresh}
        table.add("11", "RSS after the start, 1,000 keys, MB", "<= 6.2", *(mb(v) for v in fresh.values()),
                  value=float(mb(fresh["gateway"])), limit=6.2)
        table.add("11", "RSS under load of 256 connections, MB", "<= 8.6", *(mb(v) for v in loaded.values()),
                  value=float(mb(loaded["gateway"])), limit=8.6)
        table.add("11", "the same after all other loads of this table, the most of all rounds, MB", "",
                  *(mb(v) for v in later.values()))
