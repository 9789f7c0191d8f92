"""Completion as bash itself does it, with the generated script."""

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.cli.completion import CORRECTIONS, _commands
from fedpohcs.cli.flower import SUBCOMMANDS
from fedpohcs.cli.program import COMMANDS
from fedpohcs.cli.traffic import COMMANDS as OSM


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedpohcs.cli.completion import script

    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / f"fedpohcs.{shell}").write_text(script(shell))
    (folder / "_fedpohcs").symlink_to("fedpohcs.zsh")  # as zsh looks for it
    return folder


def bash_offers(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    line = f"""
source {folder}/fedpohcs.bash
COMP_WORDS=(fedpohcs {" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words)}
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
function=$(complete -p fedpohcs | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function fedpohcs '{words[-1]}' '{words[-2] if len(words) > 1 else "fedpohcs"}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, check=True)
    return {word.strip() for word in done.stdout.splitlines()}


def fish_offers(folder: Path, *words: str) -> set[str]:
    """What fish offers for the last of the words."""
    line = f"source {folder}/fedpohcs.fish; complete -C {shlex.quote(' '.join(('fedpohcs', *words)))}"
    done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, check=True)
    return {word.split("\t")[0].rstrip("/") for word in done.stdout.splitlines()}


def zsh_offers(folder: Path, *words: str) -> set[str]:
    """What zsh offers for the last of the words: the script with the functions of zsh that it calls replaced."""
    line = f"""
_describe() {{ print -l -- ${{${{(P)2}}%%:*}}; }}
_files() {{ print -l -- $words[CURRENT]*(N); }}
words=(fedpohcs {" ".join(map(shlex.quote, words))})
CURRENT={len(words) + 1}
source {folder}/_fedpohcs
"""
    done = subprocess.run(["zsh", "-f", "-c", line], capture_output=True, text=True, check=True)
    return {word for word in done.stdout.splitlines() if word.startswith(words[-1])}  # zsh leaves out the others


SHELLS = [
    pytest.param(
        offers, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"), id=name
    )
    for name, offers in {"bash": bash_offers, "zsh": zsh_offers, "fish": fish_offers}.items()
]


@pytest.mark.parametrize("offers", SHELLS)
def test_a_shell_completes_commands_options_choices_presets_and_files(
    scripts: Path, offers: Callable[..., set[str]]
) -> None:
    assert offers(scripts, "tr") == {"train"}
    assert set(COMMANDS) <= offers(scripts, "")
    assert offers(scripts, "flower", "no") == {"node"}
    assert "--learner.learning-rate" in offers(scripts, "train", "tabular", "--learner.learning")
    assert "--selectors" in offers(scripts, "compare", "tabular", "--sel")
    assert offers(scripts, "train", "tabular", "--privacy", "ma") == {"masked"}
    assert offers(scripts, "train", "tabu") == {"tabular"}
    assert offers(scripts, "flower", "run", "gym/CartP") == {"gym/CartPole-v1"}
    script = f"{scripts}/fedpohcs.ba"
    for words in (["table", script], ["train", "tabular", "--out", script], ["report", "-o", script]):
        assert offers(scripts, *words) == {f"{script}sh"}


def test_every_command_is_completed() -> None:
    known = _commands()
    assert known.keys() == COMMANDS.keys()
    assert known["flower"].keys() == SUBCOMMANDS.keys()
    assert known["osm"].keys() == OSM.keys()


CALLS = {
    "bash": 'compgen -f -- "${COMP_WORDS[COMP_CWORD]}"',
    "zsh": '"${words[@]}" "$((CURRENT - 1))"',
    "fish": 'printf "%s" "$pycode" | $python_cmd - $words (commandline -ct) $current',
}


@pytest.mark.parametrize("shell", CALLS)
def test_every_correction_of_a_script_finds_its_place(scripts: Path, shell: str) -> None:
    text = (scripts / f"fedpohcs.{shell}").read_text()
    assert "presets = ['" in text
    assert CALLS[shell] in text
    assert all(old not in text.replace(new, "") for old, new in CORRECTIONS[shell].items())


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err
