"""What macOS and Windows lack is hidden from a process, which then trains all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.locks import FolderLock
from fedpohcs.runs.loading import load_run

WITHOUT = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")  # filelock says that locks are soft
import multiprocessing
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in (
    (os, ("sched_getaffinity", "sched_setaffinity", "O_DIRECTORY", "killpg", "getuid")),
    (signal, ("SIGHUP", "SIGKILL", "pthread_sigmask")),
):
    for name in names:
        delattr(module, name)
multiprocessing.context.DefaultContext.get_all_start_methods = lambda self: ["spawn"]
multiprocessing.get_all_start_methods = lambda: ["spawn"]
opened = os.open
def refuse_folders(path, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied")
    return opened(path, *rest, **named)
os.open = refuse_folders
from fedpohcs.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def without_linux(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "without_linux.py").write_text(WITHOUT)
    return subprocess.run(
        [sys.executable, str(folder / "without_linux.py"), *arguments], cwd=folder, capture_output=True, text=True
    )


def test_mountain_cars_train_without_what_only_linux_has(tmp_path: Path) -> None:
    small = ["--clients", "3", "--learner.filter-warmup-steps", "1000", "--learner.local-iterations", "1"]
    done = without_linux(tmp_path, "train", "mountain-cars", *small, "--rounds", "1", "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert load_run(tmp_path / "run").complete
    assert b"\r" not in (tmp_path / "run" / "rounds.csv").read_bytes()


def test_flower_is_refused_in_one_line_where_its_processes_cannot_be_ended(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    done = without_linux(tmp_path, "flower", "run", "tabular", "--clients", "3")
    assert done.returncode == 2
    assert done.stderr == "fedpohcs: Flower fleets need Linux or macOS. On Windows use WSL, or fedpohcs train.\n"


def test_a_folder_is_locked_against_other_processes_and_free_after_release(tmp_path: Path) -> None:
    code = "from pathlib import Path; from fedpohcs.core.locks import FolderLock; FolderLock(Path('.'), text='it')"
    with FolderLock(tmp_path, text="it"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.stderr.splitlines()[-1].endswith(
            "UserError: it is being written by another process. Wait for it or stop it."
        )
        with pytest.raises(UserError, match="it is being written"):
            FolderLock(tmp_path, text="it")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
