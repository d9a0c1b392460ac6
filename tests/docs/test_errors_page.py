"""The page of errors documents every error class, with examples that run."""

from tests.support import errors_page


def test_every_class_has_an_example():
    assert {cls.__name__ for cls in errors_page.classes()} == set(errors_page.EXAMPLES)


def test_the_page_is_up_to_date():
    """Run ``python -m tests.support.errors_page`` if this fails."""
    assert errors_page.PAGE.read_text() == errors_page.render()
