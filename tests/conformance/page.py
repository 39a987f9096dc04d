"""The tables of src/docs/reference/conformance.md, each between two marks, which the scripts of this folder compare."""

import pathlib

PAGE = pathlib.Path(__file__).parent.parent.parent / "src" / "docs" / "reference" / "conformance.md"
END = "\n<!-- end -->"


def table(head, rows):
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in [head, ["---"] * len(head), *rows])


def differs(name, text):
    """Prints a table. Returns 1, and says so, if the page contains another one."""
    print(text)
    if PAGE.read_text().partition(f"<!-- scripts/test conformance: {name} -->\n")[2].partition(END)[0] == text:
        return 0
    print(f"FAIL: the table of {name} in {PAGE.name} differs from the one above")
    return 1
