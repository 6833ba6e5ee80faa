import hashlib

import pytest

from lora_rl.store import canonical_json, sha256_of


def test_equal_documents_have_equal_bytes_whatever_their_order():
    assert canonical_json({"b": 1, "a": [1.5, "ä"]}) == canonical_json({"a": [1.5, "ä"], "b": 1})
    assert canonical_json({"b": 1, "a": [1.5, "ä"]}) == '{"a":[1.5,"ä"],"b":1}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_refused(value: float):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"x": value})


def test_digest_is_sha256_in_hexadecimal():
    assert sha256_of(b"data") == hashlib.sha256(b"data").hexdigest()
