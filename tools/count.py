"""Counts code lines by room, functions, gin files and make variables: `python -m tools.count`."""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Returns the number of lines that hold code: no blanks, comments or docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        holds_docstring = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if holds_docstring and ast.get_docstring(node) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def rooms(folder: Path) -> Counter[str]:
    """Returns the code lines of each file and subfolder directly in a folder."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        counts[path.relative_to(folder).parts[0]] += code_lines(path.read_text())
    return counts


def functions(folder: Path) -> int:
    """Returns the number of functions and methods, nested ones included."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def gin_files() -> int:
    """Returns the number of gin files of the project."""
    return len([*(ROOT / "gin").rglob("*.gin")])


def make_variables() -> int:
    """Returns the number of variables that a user of the Makefile can set."""
    return len(re.findall(r"^[A-Z_]+ *\??=", (ROOT / "Makefile").read_text(), re.M))


def main() -> None:
    """Prints the counts."""
    for folder in ("lra_fnet", "tests", "tools"):
        counts = rooms(ROOT / folder)
        print(f"{folder}: {counts.total():,} code lines, {functions(ROOT / folder):,} functions")
        for room, lines in counts.items():
            print(f"  {lines:6,}  {room}")
    print(f"gin: {gin_files()} files; Makefile: {make_variables()} variables")


if __name__ == "__main__":
    main()
