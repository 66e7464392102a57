"""What other users of this machine can do to a run: change files that it reads or writes."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from grpo.launch.config import Config
from grpo.stack.checkout import CHECKOUT


def warnings(config: Config, run_dir: Path) -> list[str]:
    """Return one line for each place that every user may write to.

    Only the run's user can read what the run writes, whatever the folder is.
    """
    args = config.args
    read = (CHECKOUT, CHECKOUT / ".venv", args.pretrain, args.prompt_data, args.eval_dataset)
    code = [*(args.remote_rm_url or "").split(","), args.agent_func_path]
    code += [os.environ.get(f"GRPO_{name}") for name in ("ENVIRONMENT", "LIBRARY")]
    written = (run_dir, args.ckpt_path, args.metrics_dir)
    paths = (Path(path) for path in (*read, *code, *written) if path)
    return [f"WARNING: every user can replace files in {path}; run: chmod o-w {path}" for path in open_to(paths)]


def open_to(paths: Iterable[Path]) -> list[Path]:
    """Return the paths, and the folders above them, in which every user may replace files.

    In a folder with the sticky bit, such as /tmp, users may replace only their own files.
    """
    both = {path for named in paths for path in (named.absolute(), named.resolve())}  # a link and its target
    candidates = {parent for path in both for parent in (path, *path.parents)}
    return sorted(path for path in candidates if _is_open(path))


def _is_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:  # missing (other checks report it), or not readable
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
