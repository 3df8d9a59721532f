"""The fenced blocks of code in the documentation, and the command lines in them."""

import ast
import builtins
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

UNCHECKED = re.compile(r"<!-- unchecked: (\S.*) -->\n+ *$")
"""The mark above a block that no test can check. It gives the reason."""

OF_SERVERS = re.compile(r"\b(CREATE|GRANT|ALTER|NOTIFY|BEGIN|COMMIT)\b")
"""SQL that SQLite does not have, or that is about users."""

SERVER_SQL = {
    "databases.md": "tests/e2e/test_documented_sql.py",
    "frameworks.md": "tests/e2e/test_frameworks.py",
    "index.md": "tests/e2e/test_quickstart.py",
}
"""The pages with such SQL, and the tests that take it from `server_sql` and execute it."""

_BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code: its page, the line of its fence, its language and its text."""

    page: Path
    line: int
    language: str
    text: str
    unchecked: str | None

    @property
    def place(self):
        """Where the block is, as ``docs/page.md:LINE``."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page, text):
    """The fenced blocks in the text of a page, in order."""
    for found in _BLOCK.finditer(text):
        mark = UNCHECKED.search(text, 0, found.start())
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"].strip(),
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            mark and mark[1],
        )


def all_blocks():
    """The fenced blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page, page.read_text())]


def sql_blocks():
    """The blocks of SQL of all pages, without those that no test can check."""
    return [each for each in all_blocks() if each.language == "sql" and each.unchecked is None]


def server_sql(name):
    """The blocks of SQL of a page that only a server can execute, in order.

    Unpack the list into a name for each block: then a block that is added to the page fails a test
    until that test executes it, too.
    """
    assert name in SERVER_SQL
    found = [each for each in sql_blocks() if each.page.name == name]
    return [each.text for each in found if OF_SERVERS.search(each.text)]


def free_names(source):
    """The names that Python code uses and does not define."""
    nodes = [*ast.walk(ast.parse(source))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
    return {node.id for node in names} - defined - {*dir(builtins)}


def command_lines(shell):
    """The command lines in shell code, as lists of words: without comments and here-documents."""
    code = re.sub(r"<<-?'?(\w+)'?(.*)\n(?:.*\n)*?\s*\1$", r"\2", shell, flags=re.MULTILINE)
    code = code.replace("\\\n", " ").replace("\n", "\n;")
    lexer = shlex.shlex(code, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set(";&|()"):
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words


def psched_arguments(words):
    """The program ``psched`` or ``psched-master``, and its arguments; None: another program."""
    rest = list(words)
    while rest and (re.match(r"\w+=", rest[0]) or rest[0] in {"sudo", "-u", "exec", "time"}):
        rest = rest[2:] if rest[0] == "-u" else rest[1:]
    if not rest or rest[0].rpartition("/")[2] not in {"psched", "psched-master"}:
        return None
    arguments = rest[1:]
    for number, word in enumerate(arguments):
        if word in {"<", ">", ">>", "2>"}:
            arguments = arguments[:number]
            break
    return rest[0].rpartition("/")[2], arguments
