"""The history of a working tree, for checks that compare with it."""
import subprocess


def git(root, *command):
    """The output of a git command in the folder; None where it fails, or where git is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
