"""Completion as bash itself does it, with the generated script."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.cli.completion import _commands
from fedpohcs.cli.flower import SUBCOMMANDS
from fedpohcs.cli.program import COMMANDS
from fedpohcs.cli.traffic import COMMANDS as OSM


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedpohcs.cli.completion import script

    path = tmp_path_factory.mktemp("completion") / "fedpohcs.bash"
    path.write_text(script("bash"))
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    line = f"""
source {script}
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(bash_script: Path) -> None:
    assert completed(bash_script, "tr") == {"train"}
    assert set(COMMANDS) <= completed(bash_script, "")
    assert completed(bash_script, "flower", "no") == {"node"}
    assert "--learner.learning-rate" in completed(bash_script, "train", "tabular", "--learner.learning")
    assert "--selectors" in completed(bash_script, "compare", "tabular", "--sel")
    assert completed(bash_script, "train", "tabular", "--privacy", "ma") == {"masked"}


def test_every_command_is_completed() -> None:
    known = _commands()
    assert known.keys() == COMMANDS.keys()
    assert known["flower"].keys() == SUBCOMMANDS.keys()
    assert known["osm"].keys() == OSM.keys()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_the_same_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*COMMANDS, *SUBCOMMANDS, "learner.learning-rate"))


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err
