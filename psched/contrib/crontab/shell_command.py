"""Facts about a shell command that can be seen in its text; nothing is expanded or run."""

import re
import shlex
from collections import deque
from collections.abc import Iterator
from functools import partial

_PROGRAM_LENGTH = 40
"""The largest number of characters of a program's name that `program_name` returns."""

_SHELL_WORDS = frozenset([
    *("!", "{", "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "exec"),
    *("builtin", "which", "time", "nohup", "setsid", "chronic", "cronic", "run-one", "xvfb-run"),
])  # fmt: skip
"""Words that can precede the name of a command's main program."""

_PREPARING = frozenset([
    *("cd", "pushd", ".", "source", "[", "[[", "test", ":", "set", "export", "umask", "ulimit"),
    *("eval", "exit", "for", "read", "sleep", "true"),
])  # fmt: skip
"""Commands that can precede the main program, with arguments."""

_SHELLS = frozenset(["sh", "bash", "dash", "ash", "ksh", "zsh"])

_STARTERS = {
    "command": ("", 0),
    "env": ("-u --unset -C --chdir", 0),
    "nice": ("-n --adjustment", 0),
    "ionice": ("-c --class -n --classdata", 0),
    "chrt": ("", 1),
    "taskset": ("", 1),
    "flock": ("-w --wait --timeout -E --conflict-exit-code", 1),
    "setlock": ("", 1),
    "timeout": ("-k --kill-after -s --signal", 1),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    "systemd-cat": ("-t --identifier -p --priority", 0),
    "sudo": ("-u --user -g --group -h --host -p --prompt -C -D --chdir -R -r -t -T -U", 0),
    "doas": ("-u -C", 0),
    "runuser": ("-u --user -g --group -G --supp-group -s --shell -w", 1),
    "su": ("-g --group -G --supp-group -s --shell -w", 1),
}
"""Programs that start another: their options that have a value, and the number of their arguments
before the other program's name."""

_BUILTINS = frozenset([
    *("!", ".", ":", "[", "[[", "{", "(", "((", "if", "for", "while", "until", "case", "select"),
    *("function", "time", "alias", "break", "builtin", "command", "continue", "echo", "eval"),
    *("exit", "export", "false", "getopts", "hash", "jobs", "kill", "let", "local", "printf"),
    *("pwd", "read", "readonly", "return", "set", "shift", "source", "test", "times", "trap"),
    *("true", "type", "ulimit", "umask", "unalias", "unset", "wait"),
])  # fmt: skip
"""Words at the beginning of a command for which the shell starts no program, or starts one only
under a condition."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

_GUARD = re.compile(r"\s*(?:\[\s(?P<bracket>[^];&|]*)\s\]|test\s(?P<test>[^;&|]*))\s*&&(?!\s*!)")
"""Matches ``[ … ] &&`` or ``test … &&`` at the beginning of a command."""

_FILE_TEST = re.compile(r"(?<!\S)-[bcdefghkLnOprsSuwxz]\s")


def program_name(command: str) -> str:
    """Guess the name of a command's main program; return "command" if no word looks like one.

    This is what the command is there for: not the folder that it enters before, and no shell or
    ``flock`` that starts the program.
    """
    words = re.findall(r"[\w./+@:-]+", re.sub(r"(?<!\S)\w+=\S*", " ", command))
    named = (name for name in map(_name_in, words) if name and name not in _SHELL_WORDS)
    name = _main_program(command) or next(named, "command")
    return slug(name)[:_PROGRAM_LENGTH]


def _main_program(command: str) -> str | None:
    """The name of the program that a command is there for; None if its words do not tell."""
    try:
        words = deque(_words(command))
    except ValueError:  # a quotation mark has no partner
        words = deque(_words(re.sub("[\"']", " ", command).rstrip("\\")))
    while words:
        word = words.popleft().strip("`$")
        name = word.rpartition("/")[2]
        if _is_operator(word):
            if {*word} & {*"<>"} and words:
                words.popleft()  # the file
        elif name in _PREPARING or (name == "command" and words and words[0] in {"-v", "-V"}):
            while words and not _separates(words[0]):
                words.popleft()
        elif name in _SHELLS or name in _STARTERS:
            skip = _skip_options_of_shell if name in _SHELLS else partial(_skip_arguments, name)
            if (text := skip(words)) is not None:
                return _main_program(text)
        elif name not in _SHELL_WORDS and not _ASSIGNMENT.match(word) and (found := _name_in(word)):
            return found
    return None


def _name_in(word: str) -> str | None:
    """The name of the program that a word names as a path or a name; None if it does not."""
    name = word.rstrip("/").rpartition("/")[2]
    return name if name[:1].isalpha() and not word.startswith(("/run/", "/dev/")) else None


def _skip_options_of_shell(words: deque[str]) -> str | None:
    """Remove a shell's options from the words after it; return the text of ``-c``, if any."""
    is_text = False
    while words and words[0].startswith(("-", "+")):
        option = words.popleft()
        if not option.startswith("--"):
            is_text = is_text or "c" in option
            if option.endswith(("o", "O")) and words:
                words.popleft()
    return words.popleft() if is_text and words else None


def _skip_arguments(name: str, words: deque[str]) -> str | None:
    """Remove a starter's arguments from the words after it; return the text of ``-c``, if any."""
    listed, arguments = _STARTERS[name]
    with_value = listed.split()
    while words and not _is_operator(words[0]):
        option = words[0]
        if not option.startswith("-"):
            if not arguments and not _ASSIGNMENT.match(option):
                break
            arguments -= not _ASSIGNMENT.match(option)
        words.popleft()
        if name in {"flock", "runuser", "su"} and option in {"-c", "--command"}:
            return words.popleft() if words else None
        if name == "runuser" and option in {"-u", "--user"}:
            arguments = 0
        # In `-Hu NAME`, the last letter has a value; in `-uNAME`, the first has it.
        last = option[:2] not in with_value and option[1:2] != "-" and f"-{option[-1:]}"
        if option.startswith("-") and {option, last} & {*with_value} and words:
            words.popleft()
    return None


def _words(command: str) -> Iterator[str]:
    """Split a command as a shell does."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.commenters = ""
    words.whitespace_split = True
    return words


def _is_operator(word: str) -> bool:
    return word != "" and not word.strip("();<>|&")


def _separates(word: str) -> bool:
    """Whether a word stands between two commands: ``;``, ``&&`` or ``||``, and no ``>&``."""
    return _is_operator(word) and {*word} & {*";&|"} != set() and not {*word} & {*"<>"}


def slug(name: str) -> str:
    """Replace each character of a name that would look odd in a key."""
    return re.sub(r"[^\w.+-]", "-", name)


def first_program(command: str) -> str | None:
    """The program that a command always starts first, as it is written: a path or a name.

    None if the text does not tell: if a condition precedes the program, or if the shell computes
    the program's name.
    """
    try:
        rest = [*_words(command)]
    except ValueError:  # a quotation mark has no partner
        return None
    moved = False
    while rest:
        word = rest.pop(0)
        if word.startswith("PATH="):
            return None
        if _ASSIGNMENT.match(word) or word == "exec":
            continue
        if word == "cd":
            # The command after `cd FOLDER &&` or `cd FOLDER;` is the first that starts a program.
            moved = True
            while rest and rest[0] not in {"&&", ";"}:
                rest.pop(0)
            del rest[:1]
            continue
        is_plain = re.fullmatch(r"[\w./+@:-]+", word) is not None and word not in _BUILTINS
        is_relative = moved and "/" in word and not word.startswith("/")
        return word if is_plain and not is_relative else None
    return None


def is_guarded(command: str) -> bool:
    """Whether a command begins like ``[ -x /usr/sbin/a ] && /usr/sbin/a``.

    If the test of the file fails, such a command does nothing, and its exit status is 1.
    """
    match = _GUARD.match(command)
    return match is not None and _FILE_TEST.search(match["bracket"] or match["test"]) is not None


_QUOTED = re.compile(
    r"""\\. | '[^']*('|$) | "(\\.|[^"\\])*("|$) | `[^`]*(`|$) | (?<!\S)\#.*""",
    re.DOTALL | re.VERBOSE,
)
"""Matches what is quoted, and a comment."""

_BACKGROUND = re.compile(r"(?<![&<>|])&(?![&>])(?!.*\bwait\b)", re.DOTALL)
_IN_SHELL = re.compile(r"""\s-\w*c\s+(["'])(?:(?!\1).)*[^&<>|]&\s*\1""")


def in_foreground(command: str) -> tuple[str, bool]:
    """Remove a final ``&``; say whether a part still runs in the background at the end."""
    bare = _QUOTED.sub(lambda found: " " * len(found[0]), command)
    if last := re.search(r"(?<![&<>|])&\s*$", bare):
        command, bare = command[: last.start()].rstrip(), bare[: last.start()]
    return command, bool(_BACKGROUND.search(bare) or _IN_SHELL.search(command))
