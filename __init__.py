"""vizoo: a vision model zoo and neural-architecture-search toolkit on PyTorch and Lightning."""
