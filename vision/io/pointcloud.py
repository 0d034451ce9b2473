"""Open3D, for what is made of clouds and meshes; imported on first use: it takes a second."""

from __future__ import annotations

from types import ModuleType

from ...common.system import missing_library

__all__ = ["open3d"]


def open3d() -> ModuleType:
    """Import Open3D.

    Raises:
        ImportError: it is not installed, or a system library that it needs is missing; the message
            says what to install.
    """
    try:
        import open3d
    except ModuleNotFoundError as error:
        raise ImportError(
            f"point clouds and meshes need Open3D ({error}): pip install open3d-cpu, or open3d"
        ) from error
    except (ImportError, OSError) as error:
        remedy = missing_library(error)
        raise ImportError(
            f"Open3D cannot be loaded ({error})" + (f"; {remedy}" if remedy else "")
        ) from error
    return open3d
