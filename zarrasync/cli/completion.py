"""The command completion: scripts for shells, and the values that they ask for while a command is typed."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync.cli.arguments import options
from zarrasync.cli.console import Console
from zarrasync.cli.ingest_plans import make_plan_parser
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import resolve

_SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
_PATIENCE = {"retries": 0, "request_timeout": 3.0, "total_timeout": 3.0}
"""Settings of requests for completions: an answer after several seconds is of no use."""


def add(commands: Any, make_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: The object that ``add_subparsers`` returned.
        make_parser: Returns the parser of all commands, without those for plans.
    """

    def make_parser_with_plans() -> argparse.ArgumentParser:
        parser = make_parser()
        ingest = _subcommands(parser)["ingest"]
        (plans,) = [action for action in make_plan_parser()._actions if not action.option_strings]  # noqa: SLF001
        ingest._actions.insert(0, plans)  # noqa: SLF001  # argparse cannot parse both, but shells complete both
        return parser

    text = "print a completion script, which the shell must evaluate"
    parser = commands.add_parser(
        "completion",
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=(*_SHELLS, "values"), metavar=f"{{{','.join(_SHELLS)}}}", help="the shell")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=_completion, json=False, debug=False, parser=parser, make_parser=make_parser_with_plans)


_HELP = """for each session, add one of these lines to the shell's startup file:
  bash  eval "$(zarrasync completion bash)"
  zsh   eval "$(zarrasync completion zsh)"       # after compinit
  fish  zarrasync completion fish | source
"""


def _completion(args: argparse.Namespace, console: Console) -> int:
    if args.shell == "values":
        for value in _values(args.make_parser(), args.words):
            console.text(value)
        return 0
    try:
        import shtab
    except ImportError as error:
        raise ImportError("completion needs shtab: pip install 'zarrasync[cli]'") from error
    if args.shell not in shtab.SUPPORTED_SHELLS:
        raise ImportError(f"completion for {args.shell} needs a newer shtab: pip install -U 'zarrasync[cli]'")
    parser: argparse.ArgumentParser = args.make_parser()
    for command in _commands(parser):
        for action in command._actions:  # noqa: SLF001  # as shtab does
            if action.dest in ("url", "dest"):
                action.complete = _completer(shtab, "url_or_file")  # type: ignore[attr-defined]  # shtab looks for it
            elif action.dest in ("path", "dest_path"):
                action.complete = _completer(shtab, "member_file")  # type: ignore[attr-defined]
            elif action.dest in ("output", "file", "manifest", "report", "metrics", "plan", "encoding"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    console.text(f"{shtab.complete(parser, args.shell)}\n{_ENDS.get(args.shell, '')}".rstrip())
    return 0


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield all commands below a parser."""
    for command in _subcommands(parser).values():
        yield command
        yield from _commands(command)


def _subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the commands directly below a parser by name."""
    for action in parser._actions:  # noqa: SLF001  # as shtab does
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return action.choices
    return {}


# ------------------------------------------------------------------ functions of shells

_BASH = """
_zarrasync_url_or_file() { [[ $1 == *://* ]] && _zarrasync_member_file "$1" || _shtab_compgen_files "$1"; }
_zarrasync_member_file() {
  local IFS=$'\\n' words=("${COMP_WORDS[@]:1:COMP_CWORD-1}" "$1")
  words=("${words[@]//\\\\/}")  # spaces in words are escaped
  compgen -W "$(zarrasync completion values "${words[@]}" 2>/dev/null)" -- "${words[@]: -1}"
}
_zarrasync() {
  local line="${COMP_LINE:0:COMP_POINT}"
  if [[ $line == *://* ]]; then  # Bash has split the URL at its colon
    local -a COMP_WORDS
    IFS=$' \\t' read -ra COMP_WORDS <<<"$line"
    [[ $line == *[[:space:]] ]] && COMP_WORDS+=("")
    local COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  fi
  local word="${COMP_WORDS[COMP_CWORD]}"
  _shtab_zarrasync "$1" "$word" "${COMP_WORDS[COMP_CWORD-1]}"
  [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
  [[ ${COMPREPLY[0]-} == */ ]] && compopt -o nospace 2>/dev/null
  return 0
}
"""
_ENDS = {
    "bash": """
_shtab_zarrasync_ingest_pos_0_COMPGEN=_zarrasync_url_or_file  # besides the commands for plans
complete -o bashdefault -F _zarrasync zarrasync
""",
    "zsh": """
_zarrasync() {
  local -a plans=(plan run finish abandon)
  if [[ $words[2] == ingest && $CURRENT -gt 3 && -n ${plans[(r)$words[3]]} ]]; then
    local options=_shtab_zarrasync_ingest_${words[3]}_options
    shift 2 words
    (( CURRENT -= 2 ))
    _arguments -C -s "${(@P)options}"
  else
    [[ $words[2] == ingest && $CURRENT -eq 3 ]] && compadd -- $plans
    _shtab_zarrasync "$@"
  fi
}
compdef _zarrasync zarrasync
""",
    "fish": """
complete -c zarrasync -n '_shtab_zarrasync_using ingest; and test $_shtab_zarrasync_npos -eq 0' -ka "(_zarrasync_url_or_file)"
""",
}
"""Ends of the scripts, after the functions of shtab."""
_ZSH = """
_zarrasync_url_or_file() { [[ $PREFIX == *://* ]] && _zarrasync_member_file || _files; }
_zarrasync_member_file() {
  local -a typed values  # shtab changes $words
  typed=("${(@Qz)LBUFFER}")
  [[ $LBUFFER == *[[:space:]] ]] || shift -p typed
  values=("${(@f)$(zarrasync completion values "${(@)typed[2,-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  compadd -S '' -- ${values:#}
}
"""
_FISH = """
function _zarrasync_url_or_file
  string match -q '*://*' -- (commandline -ct); and _zarrasync_member_file; or __fish_complete_path (commandline -ct)
end
function _zarrasync_member_file
  set -l words (commandline -opc)
  zarrasync completion values $words[2..-1] (commandline -ct) 2>/dev/null
end
"""


def _completer(shtab: Any, kind: str) -> dict[str, Any]:
    """Return a completer of shtab that calls our functions; in other shells, it completes files.

    The names of the functions matter: in Bash, shtab treats the values of functions as file names if these contain "file".
    """
    name = f"_zarrasync_{kind}"
    files = shtab.FILE if kind == "url_or_file" else dict.fromkeys(shtab.FILE, "")
    functions = {"bash": name, "zsh": name, "fish": f"({name})"}
    return {**files, **functions, "preamble": {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}}


# ------------------------------------------------------------------ values


def _values(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield possible values of the last word: URLs, or paths of members after ``--path``.

    Failures yield nothing, because a message would be printed into the line that is typed.
    """
    if not words:
        return
    *before, word = words
    while commands := _subcommands(parser):
        if before and before[0] in commands:
            parser = commands[before.pop(0)]
        elif any(action.dest == "url" for action in parser._actions):  # noqa: SLF001  # has no public list
            break
        else:
            return
    given = _arguments(parser, before)
    last = before[-1] if before else ""
    is_dest = last == "--dest-path"
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if last in ("--path", "--dest-path"):
            urls = given["positional"]
            stored = options(given["--dest-option" if is_dest else "-o"])
            yield from _members(urls[1 if is_dest else 0], word, stored)
        elif "://" in word:
            yield from _urls(word, options(given["-o"]))


def _arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, list[str]]:
    """Return the positional arguments and the storage options of an incomplete command line."""
    found: dict[str, list[str]] = {"positional": [], "-o": [], "--dest-option": []}
    known = parser._option_string_actions  # noqa: SLF001  # has no public list
    pending: argparse.Action | None = None
    for word in words:
        if pending is not None:
            found.setdefault(pending.option_strings[0], []).append(word)
            pending = None
        elif word.startswith("-"):
            action = known.get(word)
            pending = action if action is not None and action.nargs != 0 else None
        else:
            found["positional"].append(word)
    return found


def _members(url: str, word: str, storage_options: dict[str, object] | None) -> Iterator[str]:
    """Yield the paths of the members of the group that a word names, with a slash at the end of groups."""
    parent, slash, _ = word.rpartition("/")
    group = sync.open_group(url, path=parent, storage_options=storage_options, config=_PATIENCE)
    for name, member in group.members():
        path = f"{parent}{slash}{name}"
        if path.startswith(word):
            yield f"{path}/" if isinstance(member, sync.Group) else path


def _urls(word: str, storage_options: dict[str, object] | None) -> Iterator[str]:
    """Yield the URLs of the directories and files below the one that a word names, from one listing."""
    parent, _, name = word.rpartition("/")
    if parent.endswith("/"):  # a host or bucket
        return
    store = resolve(parent, storage_options, _PATIENCE)

    async def list_parent() -> Any:
        return await store.list_dir("")

    listing = run(run_on_store(list_parent, store), blocking=store.blocking)
    for key in (*listing.prefixes, *listing.keys):
        if key.startswith(name):
            yield f"{parent}/{key}"
