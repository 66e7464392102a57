"""The run that a keeper supervises, as the launcher hands it over."""

import json
from dataclasses import asdict, dataclass

from grpo.launch.supervise.ray_head import RayHead


@dataclass
class Job:
    """The run to supervise.

    Attributes:
        run_id: written into the environment of every started process (``GRPO_RUN_ID``).
        driver: the command; `cwd` is its working directory.
        environment: variables on top of the keeper's own.
        log_dir: where ``driver.log``, ``ray-start.log`` and Ray's own logs go.
        base_dir: the run's folder for sockets and temporary files; deleted at the end.
        foreign_memory: files under /dev/shm from before the run; never deleted.
        stand_in_models: ids for a local stand-in for Gemini; [] starts none.
        ray: the cluster to start; None starts none (``RAY_ADDRESS`` in the environment names one to join).
        grace: seconds between SIGTERM and SIGKILL.
    """

    run_id: str
    driver: list[str]
    cwd: str
    environment: dict[str, str]
    log_dir: str
    base_dir: str
    foreign_memory: list[str]
    stand_in_models: list[str]
    ray: RayHead | None
    grace: float

    def dump(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, line: str) -> "Job":
        """Read what :meth:`dump` wrote."""
        values = json.loads(line)
        values["ray"] = RayHead(**values["ray"]) if values["ray"] else None
        return cls(**values)
