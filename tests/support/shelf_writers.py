"""One of several processes that write to a shelf at once."""

from __future__ import annotations

from vizoo.datasets.shelf import Shelf


def write_in_turns(folder, limit, begin):
    """Reads and writes forty files, some of them twice, once all processes have come to begin."""
    shelf = Shelf(folder, limit)
    begin.wait()
    for turn in range(60):
        name, data = f"{turn % 40:02d}/sample", bytes([turn % 40]) * 9000
        assert shelf.read(name) in (None, data)  # never half a file
        shelf.write(name, data)
