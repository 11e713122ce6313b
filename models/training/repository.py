"""The rest of this repository: its evaluation's tasks, words and servers serve here, too."""
import pathlib
import sys

TRAINING = pathlib.Path(__file__).resolve().parent
ROOT = TRAINING.parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "quality"))

from evaluation.serving import served  # noqa: E402  (the path comes first)
from evaluation.tasks import TASKS, generate  # noqa: E402
from evaluation.templates import CHATML  # noqa: E402
from evaluation.text import FILLER, LISTS, Books  # noqa: E402

__all__ = ["CHATML", "FILLER", "LISTS", "ROOT", "TASKS", "TRAINING", "Books", "generate", "served"]
