"""Facts about a shell command that can be seen in its text; nothing is expanded or run."""

import re
import shlex

_PROGRAM_LENGTH = 40
"""The largest number of characters of a program's name that `program_name` returns."""

_SHELL_WORDS = frozenset([
    *("if", "then", "else", "elif", "fi", "for", "in", "while", "do", "done", "test", "command"),
    *("exec", "env", "cd", "nice", "ionice", "sudo"),
])  # fmt: skip
"""Words that can precede the name of a command's main program; `program_name` skips them."""

_BUILTINS = frozenset([
    *("!", ".", ":", "[", "[[", "{", "(", "((", "if", "for", "while", "until", "case", "select"),
    *("function", "time", "alias", "break", "builtin", "command", "continue", "echo", "eval"),
    *("exit", "export", "false", "getopts", "hash", "jobs", "kill", "let", "local", "printf"),
    *("pwd", "read", "readonly", "return", "set", "shift", "source", "test", "times", "trap"),
    *("true", "type", "ulimit", "umask", "unalias", "unset", "wait"),
])  # fmt: skip
"""Words at the beginning of a command for which the shell starts no program, or starts one only
under a condition."""

_GUARD = re.compile(r"\s*(?:\[\s(?P<bracket>[^];&|]*)\s\]|test\s(?P<test>[^;&|]*))\s*&&(?!\s*!)")
"""Matches ``[ … ] &&`` or ``test … &&`` at the beginning of a command."""

_FILE_TEST = re.compile(r"(?<!\S)-[bcdefghkLnOprsSuwxz]\s")


def program_name(command: str) -> str:
    """Guess the name of a command's main program; return "command" if no word looks like one."""
    bare = re.sub(r"(?<!\S)\w+=\S*", " ", command)
    for word in re.findall(r"[\w./+@:-]+", bare):
        name = word.rstrip("/").rpartition("/")[2]
        elsewhere = word.startswith(("/run/", "/dev/"))
        if name and name[0].isalpha() and name not in _SHELL_WORDS and not elsewhere:
            return slug(name)[:_PROGRAM_LENGTH]
    return "command"


def slug(name: str) -> str:
    """Replace each character of a name that would look odd in a key."""
    return re.sub(r"[^\w.+-]", "-", name)


def first_program(command: str) -> str | None:
    """The program that a command always starts first, as it is written: a path or a name.

    None if the text does not tell: if a condition precedes the program, or if the shell computes
    the program's name.
    """
    try:
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.commenters = ""
        words.whitespace_split = True
        rest = [*words]
    except ValueError:  # a quotation mark has no partner
        return None
    moved = False
    while rest:
        word = rest.pop(0)
        if word.startswith("PATH="):
            return None
        if re.match(r"[A-Za-z_]\w*=", word) or word == "exec":
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
