"""Draws the path of a request through Tollgate: src/docs/architecture.svg."""
from .rig import ROOT

WIDTH, HEIGHT = 760, 300
# Left edge, top edge, width, height, title, lines below it.
BOXES = [
    (10, 60, 170, 110, "Clients", ["OpenAI SDK, Codex", "Anthropic SDK", "Claude Code", "any HTTP client"]),
    (230, 60, 150, 110, "Admission", ["API key and scope", "rate limits", "budgets"]),
    (400, 60, 150, 110, "Router", ["targets, failover", "translation between", "three API formats"]),
    (600, 60, 150, 110, "Providers", ["OpenAI, Anthropic,", "Gemini, Bedrock, …", "vLLM, llama.cpp"]),
    (230, 215, 150, 70, "Ledger", ["keys, usage records", "SQLite or Redis"]),
    (400, 215, 150, 70, "Dashboard", ["metrics, traces, log,", "admin API"]),
]
# From, to.
ARROWS = [((180, 115), (230, 115)), ((380, 115), (400, 115)), ((550, 115), (600, 115)), ((305, 170), (305, 215)),
          ((475, 170), (475, 215))]


def box(left, top, width, height, title, lines):
    text = [f'<text x="{left + width / 2:.0f}" y="{top + 24}" font-weight="bold">{title}</text>']
    text += [f'<text x="{left + width / 2:.0f}" y="{top + 44 + 19 * i}">{line}</text>' for i, line in enumerate(lines)]
    return f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="#fff"/>' + "".join(text)


def picture():
    """Writes the SVG file."""
    arrows = [f'<path d="M{x} {y}L{to_x} {to_y}" marker-end="url(#tip)"/>' for (x, y), (to_x, to_y) in ARROWS]
    (ROOT / "src" / "docs" / "architecture.svg").write_text("\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#222" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#2a6f97"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        '<rect x="210" y="20" width="360" height="275" rx="8" fill="#e8f1f6" stroke="#2a6f97"/>',
        '<text x="390" y="45" font-weight="bold" fill="#2a6f97">Tollgate: one process, one event loop</text>',
        '<g stroke="#2a6f97">', *[box(*one).replace("<text", '<text stroke="none"') for one in BOXES], "</g>",
        '<g stroke="#2a6f97" stroke-width="2">', *arrows, "</g>", "</svg>", ""]))
    return 0
