"""The tiny byte-level tokenizer, made once a session."""

from __future__ import annotations

import pytest

from deployments.tokenizer import Tokenizer
from tests.tiny_tokenizers import tokenizer_replica


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_replica(tmp_path_factory.mktemp("tiny-tokenizer"))
