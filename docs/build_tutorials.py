"""Makes the tutorials: runs examples in percent form and writes them, with what they show, to docs/tutorials/.

    python docs/build_tutorials.py                     # those in the navigation, where something changed
    python docs/build_tutorials.py examples/ude.py     # these, in any case
    python docs/build_tutorials.py --quick             # in a short setting, to see that they run: not for readers

An example is a plain script whose cells are set off by comments:

    # %% [markdown]
    # Text, in Markdown, behind comment signs.
    # %%
    x = jnp.arange(3)   # code: shown, executed; after it what it printed, its figures, and the value of its last line
    # %% tags=["hide"]
    ...                 # executed, not shown

All cells of a script share one namespace, in which `__name__` is `"__main__"`. The script runs in an empty directory,
so it finds its files by `__file__`, and what it writes is gone afterwards. An exception stops the build.
"""

import ast
import concurrent.futures
import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "tutorials"
TUTORIALS = (
    "hamiltonian_nn", "hare_lynx", "neural_ode", "ude", "neural_cde", "latent_ode", "bouncing_ball",
    "theophylline", "driven_oscillator", "robertson_net", "influenza", "alpha_pinene", "methanol", "hiv",
)  # fmt: skip

QUICK = "--quick" in sys.argv  # the examples look there too
_CELL = re.compile(r"^# ?%%(.*)$", re.MULTILINE)


def cells(source: str) -> list[tuple[str, int, str]]:
    """The cells of a script: what stands behind `%%`, the line where the text begins, the text."""
    marks = list(_CELL.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    found = []
    if marks and source[: marks[0].start()].strip():  # a docstring or imports before the first mark
        head = source[: marks[0].start()]
        found.append(("head", 1, re.sub(r"\A# ---\n.*?# ---\n", "", head, flags=re.DOTALL)))
    for mark, end in zip(marks, ends, strict=True):
        line = source.count("\n", 0, mark.end()) + 2
        found.append((mark[1].strip(), line, source[mark.end() + 1 : end]))
    return found or [("", 1, source)]


def _run(code: str, line: int, path: Path, namespace: dict[str, Any]) -> Any:
    """Executes a cell; the value of its last line, if that is an expression."""
    tree = ast.increment_lineno(ast.parse(code), line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(path), "exec"), namespace)
    if last is not None and not isinstance(last.value, ast.Constant):  # a docstring is none
        return eval(compile(ast.Expression(last.value), str(path), "eval"), namespace)
    return None


def _show(printed: str, value: Any) -> str:
    """A cell's output as Markdown."""
    items = value if isinstance(value, list | tuple) and value else [value]
    if value is not None and not any(type(i).__module__.startswith("matplotlib") for i in items):
        if hasattr(value, "_repr_html_") and not printed.strip():
            return f'<div class="output">\n{value._repr_html_()}\n</div>\n'
        printed += f"{value!r}\n"
    if not printed.strip():
        return ""
    fence = "````" if "```" in printed else "```"
    return f'<div class="output" markdown>\n\n{fence}text\n{printed.rstrip()}\n{fence}\n\n</div>\n'


def build(script: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.show = lambda *args, **kwargs: None
    name, source = script.stem, script.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    page: list[str] = []
    figures: dict[str, bytes] = {}
    for kind, line, text in cells(source):
        if kind.startswith("[markdown]"):
            page.append(re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE) + "\n")
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run(text, line, script, namespace)
        drawn = []
        for number in plt.get_fignums():
            figure, buffer = plt.figure(number), io.BytesIO()
            title = f"{name}-{len(figures) + 1}.png"
            figure.savefig(buffer, format="png", dpi=144, bbox_inches="tight")
            figures[title] = buffer.getvalue()
            drawn.append(f"![Figure {len(figures)}]({title})\n")
            plt.close(figure)
        code = text.strip()
        docstring = ast.get_docstring(ast.parse(code))
        if kind == "head" and docstring:  # the script's docstring is the page's introduction
            page.append(docstring + "\n")
            first = ast.parse(code).body[0]
            code = "\n".join(code.splitlines()[first.end_lineno :]).strip()
        if code and "hide" not in kind:
            page.append(f"```python\n{code}\n```\n")
        page += [_show(printed.getvalue(), value), *drawn]
    if not (page and page[0].startswith("# ")):
        page.insert(0, f"# {name.replace('_', ' ').capitalize()}\n")
    page.append(f"---\n\nThis page is `examples/{script.name}`, executed.\n")
    for title, picture in figures.items():
        (OUT / title).write_bytes(picture)
    text = "\n".join(part for part in page if part)
    (OUT / f"{name}.md").write_text(f"<!-- {_digest(script)} -->\n{text}", encoding="utf-8")


def _digest(script: Path) -> str:
    """Changes when the example, the library or this file does."""
    inputs = [script, Path(__file__).resolve(), ROOT / "constraints.txt"]
    inputs += sorted((ROOT / "sciml").rglob("*.py")) + sorted(ROOT.glob("examples/data/*"))
    contents = b"".join(path.read_bytes() for path in inputs)
    return hashlib.sha256(contents + str(QUICK).encode()).hexdigest()


def _is_current(script: Path) -> bool:
    page = OUT / f"{script.stem}.md"
    return page.exists() and _digest(script) in page.read_text(encoding="utf-8").partition("\n")[0]


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:2] == ["--one"]:
        script = Path(sys.argv[2])
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            build(script)
            os.chdir(ROOT)
        return
    named = [Path(argument).resolve() for argument in sys.argv[1:] if argument != "--quick"]
    todo = named or [ROOT / "examples" / f"{name}.py" for name in TUTORIALS]
    if not named:
        print(*(f"{script.name}: unchanged" for script in todo if _is_current(script)), sep="\n")
        todo = [script for script in todo if not _is_current(script)]
    # Two at a time: each spends most of its time compiling on one core.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failed = [
            script.name for script, code in zip(todo, pool.map(_one, todo), strict=True) if code
        ]
    if failed:
        sys.exit(f"{', '.join(failed)} failed: the traceback is above")


def _one(script: Path) -> int:
    print(f"{script.name}: running", flush=True)
    # A process of its own: neither precision nor devices nor names leak from one tutorial into the next.
    command = [sys.executable, __file__, "--one", str(script), *(["--quick"] if QUICK else [])]
    begin = time.perf_counter()
    code = subprocess.run(command, check=False).returncode
    print(f"{script.name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    main()
