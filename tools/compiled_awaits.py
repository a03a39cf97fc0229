"""compiled_awaits.py: fails where a compiled module waits while it handles an exception, begins a task, or has a Struct.

mypyc keeps the exception that it handles where the thread keeps it, and puts back what was there
before when it is done. Who waits in between lets other tasks run under that exception: theirs get
it as their context, and whoever is done first puts back what was another's (mypyc 2.4,
lib-rt/exc_ops.c: CPy_CatchError, CPy_RestoreExcInfo). A task root that is interpreted
(forwarders/beside.py) bounds this to the task; this lint keeps it from beginning.

It looks for `await`, `async for`, `async with`, `yield` within `except` and `finally`, and for
`async with` anywhere, whose __aexit__ is awaited while its block's exception is handled. Where that
is known to come to its end at once, the line says so: `# its end does not wait`. And for
`create_task` of anything but one of ROOTS, which are interpreted.

And for classes of msgspec's Struct: compiled, they have no fields that msgspec finds.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compiled import HOT

ROOT: Final = Path(__file__).parents[1]
KNOWN: Final = "# its end does not wait"
ROOTS: Final = frozenset({"task_root", "hot_task"})
"""Of forwarders/beside.py and gateway/front/hot_protocol.py."""
WAITS: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


def found(source: str) -> Iterator[tuple[int, str]]:
    """Line and complaint of each place, in order."""
    seen: set[tuple[int, str]] = set()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        handling: list[ast.AST] = []
        where = ""
        match node:
            case ast.Call(func=ast.Attribute(attr="create_task"), args=[work, *_]):
                match work:
                    case ast.Call(func=ast.Name(id=root) | ast.Attribute(attr=root)) if (
                        root in ROOTS
                    ):
                        pass
                    case _:
                        seen.add((node.lineno, "a task whose root is compiled"))
            case ast.ClassDef(bases=bases) if any(_is_struct(base) for base in bases):
                seen.add((node.lineno, "a Struct, which has no fields when it is compiled"))
            case ast.ExceptHandler(body=body):
                handling, where = list(body), "within `except`"
            case ast.Try(finalbody=body) | ast.TryStar(finalbody=body):
                handling, where = list(body), "within `finally`"
            case ast.AsyncWith() if not lines[node.lineno - 1].endswith(KNOWN):
                seen.add((node.lineno, "`async with` awaits its end while it handles"))
        for statement in handling:
            seen |= {(wait.lineno, f"waits {where}") for wait in _waits(statement)}
    yield from sorted(seen)


def _is_struct(base: ast.expr) -> bool:
    return ast.unparse(base).rpartition(".")[2] == "Struct"


def _waits(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Those of this function: what it defines runs when it is called."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    if isinstance(node, WAITS):
        yield node
    elif isinstance(node, ast.comprehension) and node.is_async:
        yield node.iter
    for child in ast.iter_child_nodes(node):
        yield from _waits(child)


def compiled_files() -> list[Path]:
    return [ROOT / where / f"{name}.py" for where, names in HOT.items() for name in names.split()]


def main() -> int:
    complaints = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in compiled_files()
        for line, complaint in found(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
