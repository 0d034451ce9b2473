"""What calls import that need little."""

import subprocess
import sys


def test_no_compiler_and_no_windows_are_imported():
    """Which take a second, and a hundred megabytes."""
    code = """
import sys
import numpy as np
import torch
from vizoo.vision.ops import correlation
from vizoo.vision.viz.colour import disparity_picture
correlation(*torch.rand(2, 1, 3, 4, 8), 4)
disparity_picture(np.ones((20, 20)))
print({"torch._dynamo", "matplotlib.pyplot"} & set(sys.modules))
"""
    # In a process of its own: other tests' libraries import them.
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == "set()\n"
