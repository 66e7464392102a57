"""The run that a keeper supervises, as the launcher hands it over."""

import json
import uuid
from dataclasses import asdict, dataclass, field

from grpo.launch.supervise.ray_head import RayHead
from grpo.stack.machine import SHM


@dataclass
class Job:
    """The run to supervise.

    Attributes:
        driver: the command, which runs in the checkout.
        log_dir: where ``driver.log``, ``ray-start.log`` and Ray's own logs go.
        base_dir: the run's folder for sockets and temporary files; deleted at the end.
        grace: seconds between SIGTERM and SIGKILL.
        environment: variables on top of the keeper's own.
        stand_in_models: ids for a local stand-in for Gemini; [] starts none.
        ray: the cluster to start; None starts none (``RAY_ADDRESS`` in the environment names one to join).
        run_id: written into the environment of every started process (``GRPO_RUN_ID``).
        foreign_memory: files under /dev/shm from before the run; never deleted.
    """

    driver: list[str]
    log_dir: str
    base_dir: str
    grace: float
    environment: dict[str, str] = field(default_factory=dict)
    stand_in_models: list[str] = field(default_factory=list)
    ray: RayHead | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    foreign_memory: list[str] = field(default_factory=lambda: list(map(str, SHM.glob("*"))))

    def dump(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, line: str) -> "Job":
        """Read what :meth:`dump` wrote."""
        values = json.loads(line)
        values["ray"] = RayHead(**values["ray"]) if values["ray"] else None
        return cls(**values)
