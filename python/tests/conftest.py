"""What all tests share: one thread for torch, so that its bits do not depend on the machine."""

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
