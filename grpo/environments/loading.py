"""The class of an environment by the name that ENVIRONMENT gives it."""

import importlib.util
from pathlib import Path

from grpo.environments.environment import Environment, SetupError
from reward.user_files import run_file

VERIFIERS = "verifiers:"  # begins the name of an environment of the verifiers package
BUILT_IN = {name: Path(__file__).with_name(f"{name}.py") for name in ("python", "retrieval", "single")}
_FORMS = f"name a .py file, {VERIFIERS}NAME, or one of {', '.join(BUILT_IN)}"


def load(name: str) -> type[Environment]:
    """Return the class ``Environment`` of a .py file, of one of our environments, or of one of the verifiers package.

    Raises:
        SetupError: if it is missing.
    """
    if name.startswith(VERIFIERS):
        if not importlib.util.find_spec("verifiers"):
            raise SetupError(
                f"ENVIRONMENT {name} needs the verifiers package",
                "run: uv pip install --no-deps -r requirements/verifiers.txt",
            )
        from grpo.environments.verifiers_environment import environment_of

        return environment_of(name.removeprefix(VERIFIERS))
    path = BUILT_IN.get(name, Path(name))
    if path.suffix == ".py" and not path.is_file():
        raise SetupError(f"ENVIRONMENT {name} does not exist", _FORMS)
    if path.suffix != ".py":
        raise SetupError(f"ENVIRONMENT {name} is not an environment", _FORMS)
    try:
        module = run_file(path, f"environment_{path.stem}")
    except (Exception, SystemExit) as error:
        raise SetupError(
            f"ENVIRONMENT {path} cannot be imported ({type(error).__name__}: {error})",
            "correct the file; import from grpo.environments what it extends",
        ) from error
    kind = getattr(module, "Environment", None)
    if not (isinstance(kind, type) and issubclass(kind, Environment)) or kind is Environment:
        raise SetupError(
            f"{path} has no class Environment that extends grpo.environments.environment.Environment",
            "give the class this name and this base",
        )
    return kind
